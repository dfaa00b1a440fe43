"""The cost of a step as the longer of two lines, one of computing and one of reading memory.

That form is the roofline's (Williams, Waterman and Patterson, CACM 2009). Its coefficients are
found as Magnani and Boyd fit maxima of lines (Convex piecewise-linear fitting, Optimization and
Engineering 10, 2009): say for each step which line is the longer one, fit each line to its steps,
and again, from several beginnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp
from operator import mul, sub
from typing import NamedTuple

from disagg_exporter.attribution.cost_model.nnls import solve
from disagg_exporter.attribution.cost_model.samples import StepWork

# A coefficient stays 0 until it explains more than noise would, and the weights of experts until
# there is no doubt: they are three coefficients that bend where a dense model has noise only.
_PRICE_OF_A_TERM = 25.0
_PRICE_OF_EXPERTS = 100.0
# A step with one token reads the experts of one; with many, all. Over how many tokens that
# happens depends on the model, so it is a mixture of short, middle and long.
_EXPERTS_TOKENS = (4.0, 16.0, 64.0)
_ROUNDS = 10
_LEAST_CELLS = 6
_LEAST_GAIN = 1e-6
# Beginnings: the part of the cells, by tokens, that only read.
_BEGINNINGS = (1.0, 0.25, 0.5, 0.625, 0.75, 0.875)

SampleBin = tuple[float, StepWork, float]
"""Steps alike: their weight, mean work and mean seconds."""

_Columns = list[list[float]]


class Form(NamedTuple):
    """Which terms the two lines have.

    `kv_in_tokens`: decode's cache is counted in tokens, like prefill's, so that one price does
    for both. `requests`: a request that decodes costs more than a prompt's token (it is sampled
    for, and may compute several). `experts`: reading grows with the tokens of a step until all
    experts are read.
    """

    kv_in_tokens: bool = True
    requests: bool = False
    experts: bool = False

    def computing(self, work: StepWork) -> tuple[float, ...]:
        """Terms of arithmetic: each token, and each token that it attends to."""
        prefill, attended, decode, decode_kv = work
        tokens = prefill + decode
        attention = (attended + decode_kv,) if self.kv_in_tokens else (attended, decode_kv)
        return (1.0, tokens, *attention, decode) if self.requests else (1.0, tokens, *attention)

    def reading(self, work: StepWork) -> tuple[float, ...]:
        """Terms of memory: weights, what each token moves, the cache that is read and written."""
        prefill, attended, decode, decode_kv = work
        tokens = prefill + decode
        # Exact where a step prefills one prompt: context + chunk / 2 each, and chunk / 2 more.
        prefill_kv = attended / prefill + prefill / 2 if prefill else 0.0
        terms: tuple[float, ...] = (1.0, tokens, decode_kv, prefill_kv)
        if self.kv_in_tokens:
            terms = (1.0, tokens, decode_kv + prefill_kv + tokens)
        if self.requests:
            terms += (decode,)
        if self.experts:
            terms += tuple([1 - exp(-tokens / some) for some in _EXPERTS_TOKENS])
        return terms


class Lines(NamedTuple):
    """Seconds per term of either line; a line that was never the longer one is all 0."""

    form: Form
    computing: tuple[float, ...]
    reading: tuple[float, ...]

    @property
    def empty(self) -> float:
        """The seconds of a step without any work: all other terms are 0 then."""
        return max(self.computing[0], self.reading[0])

    def price(self, work: StepWork) -> float:
        """Return the seconds that a step with this work takes."""
        form = self.form
        computing: float = sum(map(mul, self.computing, form.computing(work)))
        reading: float = sum(map(mul, self.reading, form.reading(work)))
        return max(computing, reading)


class Table:
    """What the lines of one form are fitted to, as columns."""

    def __init__(self, cells: Sequence[SampleBin], form: Form) -> None:
        self.form = form
        # Errors count relative to the length of a step.
        self.weights = [weight / seconds**2 for weight, _, seconds in cells]
        self.seconds = [seconds for _, _, seconds in cells]
        self.computing = _columns(form.computing(work) for _, work, _ in cells)
        self.reading = _columns(form.reading(work) for _, work, _ in cells)


def best(
    cells: Sequence[SampleBin],
    forms: Sequence[Form],
    known: Lines | None,
    noise_ratio: float,
    turn: int,
) -> Lines:
    """Return the lines that fit best.

    What is known is gone on with, and held at each `turn` against another beginning and another
    form; while nothing is known, against all. `noise_ratio` is the standard deviation of a step's
    length: a better fit must be worth its terms.
    """
    tries: list[tuple[Table, list[float]]] = []
    if known is None:
        for form in forms:
            table = Table(cells, form)
            tries += [(table, _few_tokens_read(table, part)) for part in _BEGINNINGS]
    else:
        own, other = Table(cells, known.form), Table(cells, forms[turn % len(forms)])
        reads = _reads(_values(own.computing, known.computing), _values(own.reading, known.reading))
        part = _BEGINNINGS[turn % len(_BEGINNINGS)]
        tries = [(own, reads), (other, reads), (own, _few_tokens_read(own, part))]
    found: list[tuple[float, Lines]] = []
    for table, reads in tries:
        lines, squares = _improve(table, reads)
        terms = sum(map(bool, lines.computing + lines.reading))
        score = squares / noise_ratio**2 + _PRICE_OF_A_TERM * terms
        found.append((score + _PRICE_OF_EXPERTS * lines.form.experts, lines))
    return min(found, key=lambda scored: scored[0])[1]


def _few_tokens_read(table: Table, part: float) -> list[float]:
    """Take the part of the cells with the fewest tokens for those where reading is the longer."""
    tokens = table.computing[1]
    border = sorted(tokens)[min(int(part * len(tokens)), len(tokens) - 1)]
    return [float(part == 1 or some < border) for some in tokens]


def _reads(computing: list[float], reading: list[float]) -> list[float]:
    return [float(r >= c) for c, r in zip(computing, reading, strict=True)]


def _improve(table: Table, reads: list[float]) -> tuple[Lines, float]:
    """Fit each line to the steps where it is the longer one, until that changes nothing."""
    lines = _fit(table, reads, Lines(table.form, (0.0,) * len(table.computing), ()))
    best_lines, least = lines, float("inf")
    for _ in range(_ROUNDS):
        computing = _values(table.computing, lines.computing)
        reading = _values(table.reading, lines.reading)
        errors = map(_square, map(sub, map(max, computing, reading), table.seconds))
        squares = sum(map(mul, table.weights, errors))
        if squares >= least * (1 - _LEAST_GAIN):
            break
        best_lines, least = lines, squares
        lines = _fit(table, _reads(computing, reading), lines)
    return best_lines, least


def _fit(table: Table, reads: list[float], before: Lines) -> Lines:
    """Fit each line to its steps; one with too few of them stays as it was."""
    computing, reading = before.computing, before.reading
    if len(reads) - sum(reads) >= _LEAST_CELLS:
        weights = [weight * (1 - read) for weight, read in zip(table.weights, reads, strict=True)]
        computing = _least_squares(table.computing, table.seconds, weights)
    if sum(reads) >= _LEAST_CELLS or not reading:
        weights = list(map(mul, table.weights, reads))
        reading = _least_squares(table.reading, table.seconds, weights)
    return Lines(table.form, computing, reading)


def _least_squares(
    columns: _Columns, seconds: list[float], weights: list[float]
) -> tuple[float, ...]:
    weighted = [list(map(mul, weights, column)) for column in columns]
    gram = [[0.0] * len(columns) for _ in columns]
    for i, left in enumerate(weighted):
        for j, right in enumerate(columns[: i + 1]):
            gram[i][j] = gram[j][i] = sum(map(mul, left, right))
    return solve(gram, [sum(map(mul, column, seconds)) for column in weighted])


def _columns(rows: Iterable[tuple[float, ...]]) -> _Columns:
    return [list(column) for column in zip(*rows, strict=True)]


def _values(columns: _Columns, coefficients: tuple[float, ...]) -> list[float]:
    values = [0.0] * len(columns[0])
    for column, coefficient in zip(columns, coefficients, strict=True):
        if coefficient:
            values = [value + coefficient * x for value, x in zip(values, column, strict=True)]
    return values


def _square(number: float) -> float:
    return number * number
