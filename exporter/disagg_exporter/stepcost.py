"""What one engine's steps cost, learned from them, and the share of a mixed one that is prefill.

docs/decisions/0005-mixed-steps.md has the definition and the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

from disagg_exporter.stepfit import Fit
from disagg_exporter.stepwork import StepWork

ENOUGH_MIXED_STEPS = 100
ENOUGH_PURE_STEPS = 30
RESIDUAL_LIMIT_RATIO = 0.25
MEMORY_STEPS = 20_000

# Where the price of a further token may change: weights are read once for all tokens of a step,
# so the first ones cost little, until computing takes longer than reading.
KNOTS_TOKENS = (16, 64, 128, 256, 512, 1024)
# In a large step, reading the cache hides behind computing.
_HIDING_TOKENS = 256.0
_SIZE = 6 + len(KNOTS_TOKENS)
_LEAST_SECONDS = 1e-9
_PLENTY, _DECODE_EVERY = 2000, 4
_PREFILL, _DECODE, _MIXED = range(3)
_RESIDUAL_MEMORY_STEPS = 200
_PACE_MEMORY_STEPS = 300
_PACE_LIMIT = 4.0
_STRAY_RATIOS = 3.0
_LEAST_STRAY_RATIO = 0.03


@dataclass(frozen=True, slots=True)
class CostState:
    """How well an engine's steps are known.

    `residual_ratio` is the mean error of a step's predicted length over that length, of mixed
    steps where there were enough, else of all; None before anything was predicted.
    `coefficients` are seconds per step, prefill token × context, decode request, decode KV, decode
    KV of small steps, and per token between the knots.
    """

    trusted: bool = False
    residual_ratio: float | None = None
    steps: int = 0
    coefficients: tuple[float, ...] = ()


class StepCost:
    """The cost model of one engine, in bounded memory.

    Steps of prefill, of decode and of both are remembered apart (each some ten thousand back) and
    fitted together. A pace that all steps share follows clocks and throttling within some hundred
    steps, so that kinds remembered from different times agree. A step that strays more than
    three times the usual counts less (Huber's weight): graph captures and first steps do.
    """

    __slots__ = ("_fit", "_pace", "_residuals", "_steps")

    def __init__(self) -> None:
        self._fit = Fit(_SIZE, 3, MEMORY_STEPS)
        self._pace = 1.0
        self._steps = [0, 0, 0]
        self._residuals = [0.0, 0.0, 0.0]

    def learn(self, work: StepWork, seconds: float) -> None:
        """Take what a step had to do and how long it took; nothing from one that took no time."""
        if seconds < _LEAST_SECONDS or not (work.prefill_tokens or work.decode_requests):
            return
        kind = _DECODE if not work.prefill_tokens else _MIXED if work.decode_requests else _PREFILL
        self._steps[kind] += 1
        # Decode steps are nearly all steps and nearly all alike: a part of them will do.
        if kind == _DECODE and self._steps[kind] > _PLENTY and self._steps[kind] % _DECODE_EVERY:
            return
        features = _features(work)
        expected = self._fit.predict(features)
        weight = self._judge(kind, seconds / self._pace / expected - 1) if expected > 0 else 1.0
        seconds /= self._pace
        # Errors count relative to the step, and to the longer of the two lengths of it: an
        # outlier must not weigh by its square.
        self._fit.learn(features, seconds, weight / max(seconds, expected) ** 2, kind)

    def prefill_share(self, work: StepWork) -> float | None:
        """Return the share of a mixed step's time that is prefill; None if it cannot be told."""
        empty = self._fit.predict(_features(StepWork()))
        prefill = self._fit.predict(_features(StepWork(*work[:2])))
        decode = self._fit.predict(_features(StepWork(0.0, 0.0, *work[2:])))
        # No step is shorter than one with less in it.
        both = max(self._fit.predict(_features(work)), prefill, decode)
        first = prefill - empty + both - decode
        second = decode - empty + both - prefill
        if first + second <= 0:
            return None
        return min(max(first / (first + second), 0.0), 1.0)

    @property
    def trusted(self) -> bool:
        """Whether mixed steps may be divided by it: enough steps seen, and foreseen well enough."""
        prefill, decode, mixed = self._steps
        enough = mixed >= ENOUGH_MIXED_STEPS or min(prefill, decode) >= ENOUGH_PURE_STEPS
        return enough and self._residual() <= RESIDUAL_LIMIT_RATIO

    @property
    def state(self) -> CostState:
        """How well the costs are known now."""
        fit = self._fit
        residual = self._residual() if fit.steps > fit.size else None
        return CostState(self.trusted, residual, fit.steps, fit.coefficients)

    def _residual(self) -> float:
        if self._steps[_MIXED] >= ENOUGH_PURE_STEPS:
            return self._residuals[_MIXED]
        weighted = sum(n * r for n, r in zip(self._steps, self._residuals, strict=True))
        return weighted / max(sum(self._steps), 1)

    def _judge(self, kind: int, stray_ratio: float) -> float:
        """Note how far a step strayed from what was foreseen; return how much it should count."""
        most = _STRAY_RATIOS * max(self._residuals[kind], _LEAST_STRAY_RATIO)
        part = 1 / min(self._steps[kind], _RESIDUAL_MEMORY_STEPS)
        self._residuals[kind] += part * (min(abs(stray_ratio), 1.0) - self._residuals[kind])
        if sum(self._steps) > _PACE_MEMORY_STEPS:
            change = max(min(stray_ratio, most), -most) / _PACE_MEMORY_STEPS
            pace = self._pace * (1 + change)
            self._pace = max(min(pace, _PACE_LIMIT), 1 / _PACE_LIMIT)
        return min(1.0, most / abs(stray_ratio)) if stray_ratio else 1.0


def _features(work: StepWork) -> tuple[float, ...]:
    tokens = work.prefill_tokens + work.decode_requests
    ramps, low = [], 0
    for knot in KNOTS_TOKENS:
        ramps.append(max(min(tokens, knot) - low, 0.0))
        low = knot
    ramps.append(max(tokens - low, 0.0))
    seen_kv = work.decode_kv / (1 + tokens / _HIDING_TOKENS)
    return (
        1.0,
        work.prefill_attended,
        work.decode_requests,
        work.decode_kv,
        seen_kv,
        *ramps,
    )
