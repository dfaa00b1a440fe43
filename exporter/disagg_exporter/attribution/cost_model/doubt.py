"""The possible error of a cost model's figures for mixed steps.

A share is a ratio of differences of prices, and many prices may explain the same steps: if all
steps fill the same token budget, prompt tokens and generated tokens cannot be told apart. So among
all prices that explain the steps nearly as well as the best ones, those are found that make a
figure largest and smallest (a profile likelihood, Venzon and Moolgavkar, Applied Statistics 37,
1988; found by tilting the least squares). Steps may be divided between the two lines in several
ways that fit alike, so the fits from all starting points are among these prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from disagg_exporter.attribution.cost_model.fit import Form, Lines, Numbers, SampleBin, Table
from disagg_exporter.attribution.cost_model.learned_costs import LearnedDoubt
from disagg_exporter.attribution.cost_model.nnls import solve
from disagg_exporter.attribution.cost_model.samples import StepWork
from disagg_exporter.model import ReferenceStep

SHARE_ERROR_LIMIT_RATIO = 0.05
INTERFERENCE_ERROR_LIMIT_RATIO = 0.03
# How far clocks and neighbours usually change an engine's pace.
_USUAL_PACE = 0.1
# Allowed increase of the sum of squares, in mean squared errors of a cell: four times the value
# that includes nine truths in ten if cells' errors are independent, because they are correlated
# where a form does not quite match the engine.
_MORE_SQUARES = 4 * 2.7
# No form matches an engine exactly: this part of mixed steps' time always remains uncertain.
_FORM_RATIO = 0.02
_ROUNDS = 5
_MOST_MIXED = 200
_NEAR_ENOUGH = 0.1
_LEAST_CELLS = 6
_TINY = 1e-60
_RIDGE = _LEAST_RATIO = 1e-9
# Prompt tokens and decoding requests of the reference steps.
_POINTS = (
    (0, 0),
    *((tokens, 0) for tokens in (256, 1024, 4096)),
    *((0, requests) for requests in (1, 16, 64, 256)),
    *((tokens, requests) for tokens in (256, 1024) for requests in (16, 64)),
)


def _name(tokens: int, requests: int) -> str:
    parts = [f"prefill_{tokens}"] * bool(tokens) + [f"decode_{requests}"] * bool(requests)
    return "_".join(parts) or "empty"


# Saved steps refer to this order.
_NAMES = tuple(_name(*point) for point in _POINTS)


class Figures(NamedTuple):
    """Figures of mixed steps, as ratios of all of an engine's step time.

    `prefill`: prefill's part in them. `interference`: how much longer they were than their parts
    separately (below 0: shorter).
    """

    prefill: float
    interference: float


@dataclass(frozen=True, slots=True)
class CostState:
    """The quality of an engine's cost model.

    Mixed steps are divided by it if it `divides`; their shares are accurate if `trusted`.
    `residual_ratio` is the mean error of a step's predicted length over that length, of mixed
    steps if there were enough, else of all; None before any prediction. `share_error_ratio` is
    the possible error of prefill's share of the engine's step time, `interference_error_ratio` that
    of the time that mixing costs or saves, over step time; None while that is not known well
    enough. `coefficients` are seconds per term of the computing line, then of the reading line;
    `reference_steps` are the present costs of some steps.
    """

    trusted: bool = False
    divides: bool = False
    residual_ratio: float | None = None
    steps: int = 0
    coefficients: tuple[float, ...] = ()
    share_error_ratio: float | None = None
    interference_error_ratio: float | None = None
    reference_steps: tuple[ReferenceStep, ...] = ()


class MixedParts(NamedTuple):
    """A mixed step's prefill share, and by which ratio it is longer than its parts separately."""

    prefill_share: float
    interference_ratio: float


class _MixedWork:
    """The heaviest mixed cells, to price whole, as prompts alone and as decode alone."""

    def __init__(self, cells: Sequence[SampleBin], form: Form) -> None:
        every = [(weight * seconds, work) for weight, work, seconds in cells]
        mixed = [cell for cell in every if cell[1].prefill_tokens and cell[1].decode_requests]
        mixed_seconds = sum(seconds for seconds, _ in mixed)
        mixed = sorted(mixed, reverse=True)[:_MOST_MIXED]
        parts = np.array([seconds for seconds, _ in mixed])
        share = mixed_seconds / sum(seconds for seconds, _ in every)
        self.parts = parts * (share / max(float(parts.sum()), _TINY))
        alone = StepWork()
        works = (
            [alone for _ in mixed],
            [StepWork(*work[:2]) for _, work in mixed],
            [StepWork(0.0, 0.0, *work[2:]) for _, work in mixed],
            [work for _, work in mixed],
        )
        self.computing = np.array([[form.computing(w) for w in some] for some in works])
        self.reading = np.array([[form.reading(w) for w in some] for some in works])

    def figures(self, lines: Lines) -> Figures:
        """Return the figures by these lines."""
        empty, prefill, decode, both = self._prices(lines)
        both = np.maximum(both, np.maximum(prefill, decode)) + _TINY
        added = np.maximum(both - empty, _LEAST_RATIO * both)
        shares = np.clip(0.5 + (prefill - decode) / (2 * added), 0, 1)
        lost = (both - prefill - decode + empty) / both
        return Figures(float(self.parts @ shares), float(self.parts @ lost))

    def slopes(self, lines: Lines) -> tuple[Numbers, Numbers]:
        """Return the derivatives of both figures by each coefficient."""
        empty, prefill, decode, both = self._prices(lines)
        reads = self.reading @ lines.reading >= self.computing @ lines.computing
        terms = np.concatenate(
            (self.computing * ~reads[..., None], self.reading * reads[..., None]), axis=-1
        )
        whole = np.where((prefill > both)[:, None], terms[1], terms[3])
        whole = np.where((decode > np.maximum(prefill, both))[:, None], terms[2], whole)
        both = np.maximum(both, np.maximum(prefill, decode)) + _TINY
        added = np.maximum(both - empty, _LEAST_RATIO * both)
        shares = (terms[1] - terms[2]) / (2 * added)[:, None]
        shares -= ((prefill - decode) / (2 * added**2))[:, None] * (whole - terms[0])
        lost = (whole - terms[1] - terms[2] + terms[0]) / both[:, None]
        lost -= ((both - prefill - decode + empty) / both**2)[:, None] * whole
        return self.parts @ shares, self.parts @ lost

    def _prices(self, lines: Lines) -> Numbers:
        prices: Numbers = np.maximum(self.computing @ lines.computing, self.reading @ lines.reading)
        return prices


class Doubt(NamedTuple):
    """The figures of an engine's mixed steps and their errors.

    `said` are the figures; the truth is within `error` of them nine times in ten. Mixed steps are
    `mixed_ratio` of the engine's step time. `steps` are reference steps.
    """

    said: Figures = Figures(0.0, 0.0)
    error: Figures = Figures(0.0, 0.0)
    mixed_ratio: float = 0.0
    steps: tuple[ReferenceStep, ...] = ()

    def save(self) -> LearnedDoubt:
        """Return it as plain values."""
        steps = tuple((_NAMES.index(name), seconds, error) for name, seconds, error in self.steps)
        return (*self.said, *self.error, self.mixed_ratio, steps)

    @classmethod
    def restored(cls, saved: LearnedDoubt) -> Self:
        """Return a saved doubt."""
        steps = tuple(ReferenceStep(_NAMES[number], *both) for number, *both in saved[5])
        return cls(Figures(*saved[:2]), Figures(*saved[2:4]), saved[4], steps)

    def error_at(self, pace: float, mixed_bias: float = 0.0) -> Figures:
        """Return the error while all steps take `pace` times the learned time.

        A pace far from 1 may be due to mixing: a load that begins to mix looks like an engine that
        has become slow, until the cost of mixing is learned. If recent mixed steps differ from
        their predictions by a `mixed_bias` of their time, what mixing costs may do so, too.
        """
        away = max(abs(pace - 1) - _USUAL_PACE, 0.0) * self.mixed_ratio
        biased = mixed_bias * self.mixed_ratio
        return Figures(self.error.prefill + away / 2, self.error.interference + away + biased)

    def knows_share(self, pace: float) -> bool:
        """Return whether the error of the prefill share is small."""
        return self.error_at(pace).prefill <= SHARE_ERROR_LIMIT_RATIO

    def knows_interference(self, pace: float, mixed_bias: float) -> bool:
        """Return whether the error of the interference is small."""
        error = self.error_at(pace, mixed_bias)
        return error.interference <= INTERFERENCE_ERROR_LIMIT_RATIO

    def steps_at(self, pace: float) -> tuple[ReferenceStep, ...]:
        """Return the costs of reference steps at a pace."""
        return tuple(ReferenceStep(point, s * pace, e * pace) for point, s, e in self.steps)


def doubt(widest: Table, cells: Sequence[SampleBin], lines: Lines, reach_tokens: float) -> Doubt:
    """Return the figures of lines and their errors, with reference steps up to `reach_tokens`.

    `widest` is the table of the form with all terms, made of `cells`. The lines are extended by
    prices for decoding beside a prompt: that the best fit omits them does not prove them 0.
    """
    lines = lines.beside()
    mixed = _MixedWork(cells, lines.form)
    table = widest.narrowed(lines.form)
    pushed = _Pushed(table, lines)
    steps = tuple(
        ReferenceStep(point, lines.price(work), pushed.error(work))
        for point, work in _points(cells)
        if work.prefill_tokens + work.decode_requests <= reach_tokens
    )
    if not len(mixed.parts):
        return Doubt(steps=steps)
    said = mixed.figures(lines)
    rivals = [other for other in table.lines_from_each_start() if pushed.is_rivalled_by(other)]
    errors = [_FORM_RATIO * float(mixed.parts.sum())] * len(said)
    for number, slope in enumerate(mixed.slopes(lines)):
        others = [*pushed.both_ways(slope), *rivals]
        errors[number] += max(abs(mixed.figures(other)[number] - said[number]) for other in others)
    return Doubt(said, Figures(*errors), float(mixed.parts.sum()), steps)


def _points(cells: Sequence[SampleBin]) -> Iterator[tuple[str, StepWork]]:
    """Yield reference steps, with the recent mean context per token and per request."""
    sums = np.sum([weight * np.array(work) for weight, work, _ in cells], axis=0)
    prefill, attended, decode, decode_kv = sums.tolist()
    for name, (tokens, requests) in zip(_NAMES, _POINTS, strict=True):
        if (prefill or not tokens) and (decode or not requests):
            context = tokens * attended / prefill if tokens else 0.0
            read = requests * decode_kv / decode if requests else 0.0
            work = StepWork(float(tokens), context, float(requests), read)
            yield name, work


class _Pushed:
    """The least squares of two lines, with steps assigned to either, and their tilting."""

    def __init__(self, table: Table, lines: Lines) -> None:
        reads = table.reads(lines)
        self._table, self._lines = table, lines
        self._width = table.computing.shape[1]
        columns = np.concatenate(
            (table.computing * ~reads[:, None], table.reading * reads[:, None]), axis=1
        )
        weighted = columns.T * table.weights
        self._gram, self._moments = weighted @ columns, weighted @ table.seconds
        self._kept = np.array([*lines.computing, *lines.reading])
        few = [np.count_nonzero(side) < _LEAST_CELLS for side in (~reads, reads)]
        self._fixed = np.repeat(few, (self._width, table.reading.shape[1]))
        self._best = solve(self._gram, self._moments)
        self._errors = float(table.errors(lines).sum())
        freedom = max(len(reads) - int(np.count_nonzero(self._best)), 1)
        self._more = _MORE_SQUARES * self._errors / freedom

    def is_rivalled_by(self, other: Lines) -> bool:
        """Return whether other lines of the same form explain the steps nearly as well."""
        return float(self._table.errors(other).sum()) <= self._errors + self._more

    def error(self, work: StepWork) -> float:
        """Return the possible error of a step's price in seconds."""
        form, lines = self._lines.form, self._lines
        terms = np.zeros(len(self._kept))
        computing, reading = np.array(form.computing(work)), np.array(form.reading(work))
        if reading @ lines.reading >= computing @ lines.computing:
            terms[self._width :] = reading
        else:
            terms[: self._width] = computing
        seconds = float(terms @ self._kept)
        seen = self._gram.diagonal() > _TINY
        free = np.flatnonzero((self._kept > 0) & seen & ~self._fixed)
        scale = np.sqrt(self._gram.diagonal()[free])
        gram = self._gram[np.ix_(free, free)] / np.outer(scale, scale) + _RIDGE * np.eye(len(free))
        scaled = terms[free] / scale
        squares = self._more * float(np.dot(scaled, np.linalg.solve(gram, scaled)))
        return min(float(np.sqrt(max(squares, 0.0))), seconds) + _FORM_RATIO * seconds

    def both_ways(self, slope: Numbers) -> list[Lines]:
        """Return lines that explain the steps nearly as well, pushed along a slope either way."""
        slope = np.where(self._fixed, 0.0, slope)
        if not slope.any() or not self._more:
            return [self._lines]
        return [self._push(slope), self._push(-slope)]

    def _push(self, slope: Numbers) -> Lines:
        best, least = self._best, self._squares(self._best)
        scale = np.sqrt(np.maximum(self._gram.diagonal(), _TINY))
        tilt = np.sqrt(self._more) / max(float(np.linalg.norm(slope / scale)), _TINY)
        found = best
        for _ in range(_ROUNDS):
            found = solve(self._gram, self._moments + tilt * slope)
            more = self._squares(found) - least
            if more <= 0:
                tilt *= 10
                continue
            ratio = self._more / more
            if abs(ratio - 1) < _NEAR_ENOUGH:
                break
            tilt *= float(np.clip(np.sqrt(ratio), 0.1, 10))
        found = np.where(self._fixed, self._kept, found)
        computing, reading = np.split(found, [self._width])
        return Lines(self._lines.form, tuple(computing.tolist()), tuple(reading.tolist()))

    def _squares(self, x: Numbers) -> float:
        return float(np.dot(x, self._gram @ x - 2 * self._moments))
