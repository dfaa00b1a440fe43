"""Fits the cost of a step as the maximum of two lines: computing and reading memory.

This is the roofline model (Williams, Waterman and Patterson, CACM 2009). Its coefficients are
found as Magnani and Boyd fit maxima of lines (Convex piecewise-linear fitting, Optimization and
Engineering 10, 2009): assign each step to its longer line, fit each line to its steps, and repeat,
from several starting points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.attribution.cost_model.nnls import solve
from disagg_exporter.attribution.cost_model.samples import StepWork

# A coefficient stays 0 until it explains more than noise would. The experts' weights need stronger
# evidence: they are three coefficients that would fit a curve to a dense model's noise.
_PRICE_OF_A_TERM = 10.0
_PRICE_OF_EXPERTS = 40.0
# A step with one token reads that token's experts; with many, all. How fast the number grows
# depends on the model, so it is a mixture of three scales.
_EXPERTS_TOKENS = (8.0, 64.0, 512.0)
_ROUNDS = 10
_LEAST_CELLS = 6
_LEAST_GAIN = 1e-6
# Errors are relative to a step's length, so that steps that seem to take no time would decide the
# fit: a record was late, or several came at once. A step counts as at least this part of what the
# lines known before say.
_LEAST_LENGTH_RATIO = 0.5
# Starting points: the part of the cells, fewest tokens first, assigned to reading.
_ALL_FORMS_TURNS = 32
_BEGINNINGS = (1.0, 0.25, 0.5, 0.625, 0.75, 0.875)

SampleBin = tuple[float, StepWork, float]
"""Similar steps: their weight, mean work and mean seconds."""

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Columns = tuple[Numbers, Numbers]


class Form(NamedTuple):
    """The terms of the two lines.

    `kv_in_tokens`: decode's cache is counted in tokens, like prefill's, so one price serves both.
    `requests`: a decoding request costs more than a prompt token (it is sampled for, and may
    compute several). `experts`: reading grows with a step's tokens until all experts are read.
    `beside`: requests that decode beside a prompt, and the cache they read, have additional prices,
    since kernels for mixed batches may be slower at decoding.
    """

    kv_in_tokens: bool = True
    requests: bool = False
    experts: bool = False
    beside: bool = False

    def computing(self, work: StepWork) -> tuple[float, ...]:
        """Return the terms of arithmetic: tokens, and the tokens they attend to."""
        prefill, attended, decode, decode_kv = work
        tokens = prefill + decode
        terms: tuple[float, ...] = (1.0, tokens, attended, decode_kv)
        if self.kv_in_tokens:
            terms = (1.0, tokens, attended + decode_kv)
        if self.requests:
            terms += (decode,)
        return terms + self._mixed(work) if self.beside else terms

    def reading(self, work: StepWork) -> tuple[float, ...]:
        """Return the terms of memory: weights, each token's data, cache reads and writes."""
        prefill, attended, decode, decode_kv = work
        tokens = prefill + decode
        # Exact if a step prefills one prompt: context + chunk / 2 each, and chunk / 2 more.
        prefill_kv = attended / prefill + prefill / 2 if prefill else 0.0
        terms: tuple[float, ...] = (1.0, tokens, decode_kv, prefill_kv)
        if self.kv_in_tokens:
            terms = (1.0, tokens, decode_kv + prefill_kv + tokens)
        if self.requests:
            terms += (decode,)
        if self.experts:
            terms += tuple([1 - exp(-tokens / some) for some in _EXPERTS_TOKENS])
        return terms + self._mixed(work) if self.beside else terms

    @staticmethod
    def _mixed(work: StepWork) -> tuple[float, float]:
        """Return the terms that only a mixed step has."""
        return (work.decode_requests, work.decode_kv) if work.prefill_tokens else (0.0, 0.0)


class Lines(NamedTuple):
    """Seconds per term of both lines; a line that was never the longer one is all 0."""

    form: Form
    computing: tuple[float, ...]
    reading: tuple[float, ...]

    @property
    def empty(self) -> float:
        """The seconds of a step without work, where all other terms are 0."""
        return max(self.computing[0], self.reading[0])

    def price(self, work: StepWork) -> float:
        """Return the seconds that a step with this work takes."""
        form = self.form
        computing: float = sum(map(mul, self.computing, form.computing(work)))
        reading: float = sum(map(mul, self.reading, form.reading(work)))
        return max(computing, reading)

    def beside(self) -> Lines:
        """Return the same lines in a form with prices for decoding beside a prompt, set to 0."""
        if self.form.beside:
            return self
        form, none = self.form._replace(beside=True), (0.0, 0.0)
        return Lines(form, self.computing + none, self.reading + none)


_FitKey = tuple[Form, bool, bytes]
"""The form of a line, whether it is the reading one, and the cells that it is fitted to."""


class Table:
    """The data that the lines of one form are fitted to, as columns.

    A cell's `weights` are the number of its steps over the squared length that errors are relative
    to. `fits` are the lines fitted so far, of all forms: forms share terms, and the assignments of
    cells to lines recur.
    """

    def __init__(
        self,
        form: Form,
        steps: Numbers,
        lengths: Numbers,
        seconds: Numbers,
        columns: Columns,
        fits: dict[_FitKey, tuple[float, ...]] | None = None,
    ) -> None:
        self.form = form
        self.seconds = seconds
        self.weights = steps / lengths**2
        self.computing, self.reading = columns
        self._steps, self._lengths = steps, lengths
        self._fits = {} if fits is None else fits

    @classmethod
    def of(cls, cells: Sequence[SampleBin], form: Form, known: Lines | None = None) -> Table:
        """Return the table of a form; `known` are the lines found before, in any of its terms."""
        steps = np.array([weight for weight, _, _ in cells])
        seconds = np.array([seconds for _, _, seconds in cells])
        computing = np.array([form.computing(work) for _, work, _ in cells])
        reading = np.array([form.reading(work) for _, work, _ in cells])
        table = cls(form, steps, seconds, seconds, (computing, reading))
        if known is None:
            return table
        least = _LEAST_LENGTH_RATIO * table.narrowed(known.form).prices(known)
        return cls(form, steps, np.maximum(seconds, least), seconds, (computing, reading))

    def narrowed(self, form: Form) -> Table:
        """Return the table of a form whose terms are a subset of this one's."""
        requests = (self.form.requests, form.requests, 1)
        experts = (self.form.experts, form.experts, len(_EXPERTS_TOKENS))
        beside = (self.form.beside, form.beside, 2)
        columns = (
            _kept(self.computing, (requests, beside)),
            _kept(self.reading, (requests, experts, beside)),
        )
        return Table(form, self._steps, self._lengths, self.seconds, columns, self._fits)

    def fit_computing(self, cells: Flags) -> tuple[float, ...]:
        """Return the least squares of the computing line over these cells."""
        # It has no terms of experts.
        terms = self.form._replace(experts=False)
        return self._fit((terms, False, cells.tobytes()), self.computing, cells)

    def fit_reading(self, cells: Flags) -> tuple[float, ...]:
        """Return the least squares of the reading line over these cells."""
        return self._fit((self.form, True, cells.tobytes()), self.reading, cells)

    def _fit(self, key: _FitKey, columns: Numbers, cells: Flags) -> tuple[float, ...]:
        fitted = self._fits.get(key)
        if fitted is None:
            weighted = columns.T * (self.weights * cells)
            fitted = tuple(solve(weighted @ columns, weighted @ self.seconds).tolist())
            self._fits[key] = fitted
        return fitted

    def reads(self, lines: Lines) -> Flags:
        """Return the cells in which the reading line is at least as long."""
        reads: Flags = self.reading @ lines.reading >= self.computing @ lines.computing
        return reads

    def prices(self, lines: Lines) -> Numbers:
        """Return each cell's seconds as predicted by lines of this form."""
        prices: Numbers = np.maximum(self.computing @ lines.computing, self.reading @ lines.reading)
        return prices

    def errors(self, lines: Lines) -> Numbers:
        """Return each cell's weighted squared error."""
        errors: Numbers = self.weights * (self.prices(lines) - self.seconds) ** 2
        return errors

    def lines_from_each_start(self) -> Iterator[Lines]:
        """Yield the lines that each starting point leads to: they may fit alike and differ."""
        for part in _BEGINNINGS:
            yield _improve(self, _few_tokens_read(self, part))[0]

    def level(self, lines: Lines) -> float:
        """Return the seconds that any form's lines predict for the steps of all cells."""
        return float(self._steps @ self.narrowed(lines.form).prices(lines))


def best(
    widest: Table,
    forms: Sequence[Form],
    known: Lines | None,
    noise_ratio: float,
    turn: int,
) -> Lines:
    """Return the lines that fit best, of forms whose terms are a subset of those of `widest`.

    The known lines are refined, and compared at each `turn` with another form (in the first turns
    with all) and another starting point; without known lines, all are tried. `noise_ratio` is the
    relative standard deviation of a step's length: a better fit must be worth its terms.
    """
    if known is not None and turn >= _ALL_FORMS_TURNS:
        forms = (known.form, forms[turn % len(forms)])
    tries: list[tuple[Table, Flags]] = []
    for form in forms:
        table = widest.narrowed(form)
        if known is None:
            tries += [(table, _few_tokens_read(table, part)) for part in _BEGINNINGS]
        else:
            tries.append((table, widest.narrowed(known.form).reads(known)))
            if form == known.form:
                part = _BEGINNINGS[turn % len(_BEGINNINGS)]
                tries.append((table, _few_tokens_read(table, part)))
    found: list[tuple[float, Lines]] = []
    for table, reads in tries:
        lines, squares = _improve(table, reads)
        terms = sum(map(bool, lines.computing + lines.reading))
        score = squares / noise_ratio**2 + _PRICE_OF_A_TERM * terms
        found.append((score + _PRICE_OF_EXPERTS * lines.form.experts, lines))
    return min(found, key=lambda scored: scored[0])[1]


def _kept(columns: Numbers, terms: Iterable[tuple[bool, bool, int]]) -> Numbers:
    """Return columns without some of the last terms, given as (exists, stays, columns)."""
    stays: list[bool] = []
    for there, kept, width in terms:
        stays += [kept] * width * there
    first = columns.shape[1] - len(stays)
    return columns[:, [*range(first), *(first + n for n, kept in enumerate(stays) if kept)]]


def _few_tokens_read(table: Table, part: float) -> Flags:
    """Return the part of the cells with the fewest tokens, to assign to the reading line."""
    tokens = table.computing[:, 1]
    if part == 1:
        return np.ones(len(tokens), np.bool_)
    few: Flags = tokens < np.sort(tokens)[min(int(part * len(tokens)), len(tokens) - 1)]
    return few


def _improve(table: Table, reads: Flags) -> tuple[Lines, float]:
    """Fit each line to the steps where it is the longer one, until the fit no longer improves."""
    lines = _fit(table, reads, Lines(table.form, (0.0,) * table.computing.shape[1], ()))
    best_lines, least = lines, float("inf")
    for _ in range(_ROUNDS):
        computing, reading = table.computing @ lines.computing, table.reading @ lines.reading
        squares = float(table.weights @ (np.maximum(computing, reading) - table.seconds) ** 2)
        if squares >= least * (1 - _LEAST_GAIN):
            break
        best_lines, least = lines, squares
        lines = _fit(table, reading >= computing, lines)
    return best_lines, least


def _fit(table: Table, reads: Flags, before: Lines) -> Lines:
    """Fit each line to its steps; a line with too few stays unchanged."""
    computing, reading = before.computing, before.reading
    if np.count_nonzero(~reads) >= _LEAST_CELLS:
        computing = table.fit_computing(~reads)
    if np.count_nonzero(reads) >= _LEAST_CELLS or not reading:
        reading = table.fit_reading(reads)
    return Lines(table.form, computing, reading)
