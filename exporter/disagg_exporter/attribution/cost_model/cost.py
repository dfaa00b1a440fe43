"""Learns the cost of one engine's steps, and the prefill share of mixed ones.

docs/decisions/0005-mixed-steps.md has the definition and the reasons.
"""

from __future__ import annotations

from itertools import product
from typing import Self

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.attribution.cost_model.doubt import CostState, Doubt, MixedParts, doubt
from disagg_exporter.attribution.cost_model.fit import Form, Lines, Table, best
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.attribution.cost_model.mixed_bias import MixedBias
from disagg_exporter.attribution.cost_model.samples import SampleBins, SpeedFactor, StepWork
from disagg_exporter.attribution.cost_model.usual_pace import UsualPace
from disagg_exporter.model import ExpectedSteps

ENOUGH_MIXED_STEPS = 100
ENOUGH_PURE_STEPS = 30
# What mixing costs is a difference of costs: it needs more steps than the costs.
ENOUGH_FOR_INTERFERENCE = 300
RESIDUAL_LIMIT_RATIO = 0.25
MEMORY_STEPS = 300_000

LEAST_SECONDS = 1e-9
PREFILL, DECODE, MIXED = range(3)
_RESIDUAL_MEMORY_STEPS = 200
_PACE_AFTER_STEPS = 300
_OUTLIER_RATIOS = 3.0
_LEAST_OUTLIER_RATIO = 0.03
_LEAST_NOISE_RATIO = 0.01
# Standard deviation over mean absolute deviation, of a normal distribution.
_SPREAD = 1.25
_FIRST_FIT_STEPS, _MOST_BETWEEN_FITS = 32, 8192
# Without a mixed step to divide, a due fit waits until so much step time has passed.
_UNREAD_FIT_SECONDS = 60.0
# How far lines are extrapolated beyond the largest step that they were learned from.
_REACH = 2.0
# An engine that seldom mixes has little to divide: beyond so many pure steps of a kind, only one in
# eight is learned from, and stands for all. It mixes if one step in a hundred is mixed.
_PURE_STEPS, _ONE_IN, _MIXES_ONE_IN = 2000, 8, 100


class StepCost:
    """The cost model of one engine, in bounded memory.

    A speed factor common to all steps follows clocks and throttling, so that samples from different
    times agree. A step with more than three times the usual error, such as a graph capture or first
    step, weighs less (Huber's weight). Where one step in eight is sampled, a due fit waits for a
    mixed step to be divided (`refresh`), or for a minute of step time.

    Args:
        kv_in_tokens: Whether `StepWork.decode_kv` is in tokens.
    """

    __slots__ = (
        "_bias",
        "_cells",
        "_doubt",
        "_fit_waits",
        "_fits",
        "_forms",
        "_lines",
        "_next_fit",
        "_pace",
        "_reach_tokens",
        "_residuals",
        "_steps",
        "_unfitted_seconds",
        "_usual_pace",
    )

    def __init__(self, *, kv_in_tokens: bool = True) -> None:
        self._forms = [Form(kv_in_tokens, *more) for more in product((False, True), repeat=3)]
        self._cells = SampleBins(MEMORY_STEPS)
        self._pace, self._usual_pace, self._bias = SpeedFactor(), UsualPace(), MixedBias()
        self._lines: Lines | None = None
        self._doubt = Doubt()
        self._fits, self._next_fit = 0, _FIRST_FIT_STEPS
        self._fit_waits, self._unfitted_seconds = False, _UNREAD_FIT_SECONDS
        self._reach_tokens = 0.0
        self._steps = [0, 0, 0]
        self._residuals = [0.0, 0.0, 0.0]

    def save(self) -> LearnedCost:
        """Return the learned state as plain values."""
        lines, form, (now, cells) = self._lines, self._forms[0], self._cells.save()
        prefill, decode, mixed = self._steps
        prefill_residual, decode_residual, mixed_residual = self._residuals
        return LearnedCost(
            kv_in_tokens=form.kv_in_tokens,
            lines=lines and (*lines.form[1:], lines.computing, lines.reading),
            pace=self._pace.save(),
            usual_pace=self._usual_pace.save(),
            bias=self._bias.save(),
            fits=self._fits,
            # A waiting fit is due at once after a restart.
            next_fit=sum(self._steps) if self._fit_waits else self._next_fit,
            reach_tokens=self._reach_tokens,
            steps=(prefill, decode, mixed),
            residuals=(prefill_residual, decode_residual, mixed_residual),
            now=now,
            doubt=self._doubt.save(),
            cells=cells,
        )

    @classmethod
    def restored(cls, saved: LearnedCost) -> Self:
        """Return a saved model: it predicts the same and continues to learn the same."""
        cost = cls(kv_in_tokens=saved.kv_in_tokens)
        cost._cells.restore(saved.now, saved.cells)
        cost._pace.restore(saved.pace)
        cost._usual_pace.restore(saved.usual_pace)
        cost._bias.restore(saved.bias)
        if saved.lines is not None:
            *more, computing, reading = saved.lines
            cost._lines = Lines(Form(saved.kv_in_tokens, *more), computing, reading)
        cost._fits, cost._next_fit = saved.fits, saved.next_fit
        cost._reach_tokens = saved.reach_tokens
        cost._steps, cost._residuals = list(saved.steps), list(saved.residuals)
        cost._doubt = Doubt.restored(saved.doubt)
        return cost

    def passes_over(self, kind: int) -> bool:
        """Return whether a pure step is not to be learned from; if so, count it."""
        number = self._steps[kind] + 1
        passes = self._thins(number) and number % _ONE_IN != 0
        if passes:
            self._steps[kind] = number
        return passes

    def learn(self, work: StepWork, seconds: float) -> None:
        """Learn from a step's work and duration; a step of no length is ignored."""
        if seconds < LEAST_SECONDS or not (work.prefill_tokens or work.decode_requests):
            return
        kind = DECODE if not work.prefill_tokens else MIXED if work.decode_requests else PREFILL
        self._steps[kind] = number = self._steps[kind] + 1
        if not self._thins(number):
            self._sample(kind, work, seconds, 1)
        elif number % _ONE_IN == 0:
            self._sample(kind, work, seconds, _ONE_IN)

    def learn_pure(self, works: NDArray[np.float64], seconds: NDArray[np.float64]) -> None:
        """Learn from pure steps in order, as `passes_over` and `learn` would one by one.

        Each row is a `StepWork`; each step took at least `LEAST_SECONDS`.
        """
        if not len(works):
            return
        decodes = works[:, 0] == 0
        counts = np.cumsum((~decodes, decodes), axis=1) + np.array(self._steps[:MIXED])[:, None]
        numbers = np.where(decodes, counts[DECODE], counts[PREFILL])
        all_of = max(_PURE_STEPS, self._steps[MIXED] * _MIXES_ONE_IN)
        alike = np.where(numbers > all_of, _ONE_IN, 1)
        learns = np.flatnonzero(numbers % alike == 0)
        columns = decodes, works, seconds, alike, counts.T
        sampled = zip(*[column[learns].tolist() for column in columns], strict=True)
        for decode, values, length, stands_for, self._steps[:MIXED] in sampled:
            kind = DECODE if decode else PREFILL
            self._sample(kind, StepWork._make(values), length, stands_for)
        self._steps[:MIXED] = counts[:, -1].tolist()

    def refresh(self) -> None:
        """Do a waiting fit: a mixed step is about to be divided finally."""
        if self._fit_waits:
            self._fit_anew()

    def expect(self, work: StepWork) -> float | None:
        """Return the seconds that a step with this work would take now; None if unknown."""
        return None if self._lines is None else self._lines.price(work) * self._pace.ratio

    def take_expected(self) -> ExpectedSteps:
        """Return the steps that were predicted well enough since the last call."""
        return self._usual_pace.take()

    def parts(self, work: StepWork) -> MixedParts | None:
        """Return the parts of a mixed step's time; None if unknown."""
        lines = self._lines
        if lines is None or work.prefill_tokens + work.decode_requests > self._reach_tokens:
            return None
        prefill = lines.price(StepWork(*work[:2]))
        decode = lines.price(StepWork(0.0, 0.0, *work[2:]))
        # A step is at least as long as one with only a part of its work.
        both = max(lines.price(work), prefill, decode)
        empty = lines.empty
        first = prefill - empty + both - decode
        second = decode - empty + both - prefill
        if first + second <= 0:
            return None
        share = min(max(first / (first + second), 0.0), 1.0)
        return MixedParts(share, (both - prefill - decode + empty) / both)

    def prefill_share(self, work: StepWork) -> float | None:
        """Return the share of a mixed step's time that is prefill; None if unknown."""
        parts = self.parts(work)
        return parts and parts.prefill_share

    @property
    def divides(self) -> bool:
        """Whether it may divide mixed steps: enough steps observed, and predicted well enough."""
        prefill, decode, mixed = self._steps
        enough = mixed >= ENOUGH_MIXED_STEPS or min(prefill, decode) >= ENOUGH_PURE_STEPS
        return enough and self._residual() <= RESIDUAL_LIMIT_RATIO

    @property
    def trusted(self) -> bool:
        """Whether, in addition, the error of the prefill share is small."""
        return self.divides and self._doubt.knows_share(self._pace.ratio)

    @property
    def knows_interference(self) -> bool:
        """Whether the cost of mixing is known: trusted, and with a small error."""
        known = self._steps[MIXED] >= ENOUGH_FOR_INTERFERENCE and self.trusted
        return known and self._doubt.knows_interference(self._pace.ratio, self._bias.ratio)

    @property
    def state(self) -> CostState:
        """The present state of the costs."""
        lines, steps = self._lines, sum(self._steps)
        if lines is None:
            return CostState(steps=steps)
        pace = self._pace.ratio
        error = self._doubt.error_at(pace, self._bias.ratio)
        return CostState(
            self.trusted,
            self.divides,
            self._residual(),
            steps,
            lines.computing + lines.reading,
            error.prefill,
            error.interference if self.knows_interference else None,
            self._doubt.steps_at(pace),
        )

    def _thins(self, number: int) -> bool:
        return number > _PURE_STEPS and self._steps[MIXED] * _MIXES_ONE_IN < number

    def _sample(self, kind: int, work: StepWork, seconds: float, alike: int) -> None:
        """Learn from a step that has been counted and stands for `alike` steps."""
        tokens, steps = work.prefill_tokens + work.decode_requests, sum(self._steps)
        expected = self._lines.price(work) if self._lines else 0.0
        ratio = self._pace.ratio
        weight = self._judge(kind, seconds, expected, ratio, alike) if expected > 0 else 1.0
        if expected > 0 and steps > _PACE_AFTER_STEPS and tokens <= self._reach_tokens:
            self._usual_pace.count(kind, expected * alike, seconds * alike)
            self._bias.count(seconds, expected * ratio, mixed=kind == MIXED)
        self._cells.add(work, seconds / ratio, weight, alike)
        self._unfitted_seconds += seconds * alike
        if steps >= self._next_fit:
            self._next_fit = steps + alike * min(max(steps // 4, 1), _MOST_BETWEEN_FITS)
            self._fit_waits = True
        if self._fit_waits and (alike == 1 or self._unfitted_seconds >= _UNREAD_FIT_SECONDS):
            self._fit_anew()

    def _residual(self) -> float:
        if self._steps[MIXED] >= ENOUGH_PURE_STEPS:
            return self._residuals[MIXED]
        weighted = sum(n * r for n, r in zip(self._steps, self._residuals, strict=True))
        return weighted / max(sum(self._steps), 1)

    def _judge(
        self, kind: int, seconds: float, expected: float, pace_ratio: float, alike: int
    ) -> float:
        """Update the residual and the pace by a step's prediction error; return its weight."""
        most = _OUTLIER_RATIOS * max(self._residuals[kind], _LEAST_OUTLIER_RATIO)
        residual = seconds / expected / pace_ratio - 1
        part = 1 / min(self._steps[kind], _RESIDUAL_MEMORY_STEPS)
        self._residuals[kind] += part * (min(abs(residual), 1.0) - self._residuals[kind])
        if sum(self._steps) > _PACE_AFTER_STEPS:
            usual = 1 + max(min(residual, most), -most)
            self._pace.follow(pace_ratio * usual, expected * pace_ratio * alike)
        return min(1.0, most / abs(residual)) if residual else 1.0

    def _fit_anew(self) -> None:
        cells = self._cells.means()
        noise_ratio = max(_SPREAD * self._residual(), _LEAST_NOISE_RATIO)
        before = self._lines
        widest = Table.of(cells, self._forms[-1], before)
        self._lines = best(widest, self._forms, before, noise_ratio, self._fits)
        if before is not None:
            self._usual_pace.rescale(widest.level(before), widest.level(self._lines))
        self._fits += 1
        self._fit_waits, self._unfitted_seconds = False, 0.0
        tokens = max(work.prefill_tokens + work.decode_requests for _, work, _ in cells)
        self._reach_tokens = _REACH * tokens
        self._doubt = doubt(widest, cells, self._lines, self._reach_tokens)
