"""Compares two spans: each measure before and after, at equal load, with its interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.compare.blocks import (
    Blocks,
    Estimate,
    batch_steps,
    correlated_steps,
    resampled,
)
from disagg_cluster.planner.compare.equal_load import EqualLoad
from disagg_cluster.planner.compare.matching import LEAST_MINUTES, UndecidedComparison, match
from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats, quotient

_INTERVAL = (0.05, 0.95)
_QUANTILE = 0.95
_WHEN = ("before", "after")
_MILLION = 1e6
# A measure that never varies has an interval as narrow as the rounding of its sums.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Measure:
    """A measure; `known` says in which minutes it is known, `most` from when on it is only more."""

    name: str
    unit: str
    more_is_better: bool
    estimate: Estimate
    known: Callable[[SpanMinutes], NDArray[np.bool_]]
    most: Callable[[SpanMinutes], float] = lambda _span: np.inf


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """One measure; `change_ratio` is after / before - 1, `low` and `high` its 90 % interval.

    `more_is_better` says which direction is an improvement.
    """

    name: str
    unit: str
    before: float
    after: float
    change_ratio: float
    low: float
    high: float
    more_is_better: bool

    @property
    def verdict(self) -> str:
        """Better, worse, or no sure difference."""
        if self.low <= _ROUNDING and self.high >= -_ROUNDING:
            return "no sure difference"
        return "better" if (self.change_ratio > 0) is self.more_is_better else "worse"


@dataclass(frozen=True, slots=True)
class UnknownMeasure:
    """A measure that is unknown in one of the spans, and why."""

    name: str
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measures, and which share of each span could be matched."""

    measures: tuple[MeasuredChange | UnknownMeasure, ...]
    matched_ratio: tuple[float, float]
    unmatched: tuple[str, ...]


def compare(before: SpanMinutes, after: SpanMinutes) -> Comparison | UndecidedComparison:
    """Compare two spans at equal load.

    Measures are ratios of sums over weighted minutes; each uses the minutes in which it is known,
    matched separately. Intervals come from the moving block bootstrap (Künsch 1989), with block
    lengths from the correlation time of a measure, and are widened for few blocks. What of load
    still differs within strata is removed by regression (`EqualLoad`).
    """
    matched = match(before, after)
    if isinstance(matched, UndecidedComparison):
        return matched
    measures = tuple(_change(each, (before, after)) for each in _MEASURES)
    return Comparison(measures, matched.matched_ratio, matched.unmatched)


def _change(
    measure: _Measure, spans: tuple[SpanMinutes, SpanMinutes]
) -> MeasuredChange | UnknownMeasure:
    def unknown(why: str) -> UnknownMeasure:
        return UnknownMeasure(measure.name, measure.unit, why)

    known = tuple(measure.known(span) for span in spans)
    for when, minutes in zip(_WHEN, known, strict=True):
        if not minutes.any():
            return unknown(f"it is not known in the minutes {when}")
    matched = match(*(_only(span, minutes) for span, minutes in zip(spans, known, strict=True)))
    if isinstance(matched, UndecidedComparison):
        return unknown(f"fewer than {LEAST_MINUTES} matched minutes have it")
    weights = (matched.before, matched.after)
    old, new = _values(measure.estimate, spans, weights)
    for when, value in zip(_WHEN, (old, new), strict=True):
        if not (np.isfinite(value) and value > 0):
            return unknown(f"it is 0 in the minutes {when}")
    if all(value >= measure.most(span) for value, span in zip((old, new), spans, strict=True)):
        return unknown(f"it is beyond what is counted, {old:g} {measure.unit}, in both spans")
    equal = EqualLoad.between(measure.estimate, spans, weights)
    old, new = _values(equal.estimate, spans, weights)
    generator = np.random.default_rng(0)
    correlated = [
        correlated_steps(equal.estimate, span, weight)
        for span, weight in zip(spans, weights, strict=True)
    ]
    # Both spans are of one cluster: the larger estimate applies to both.
    blocks = [Blocks.of(span, max(correlated)) for span in spans]
    drawn = [
        np.concatenate(
            [equal.estimate(span, rows) for rows in resampled(weight, each.steps, generator)]
        )
        for span, weight, each in zip(spans, weights, blocks, strict=True)
    ]
    ratios = drawn[1] / drawn[0]
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    ends = np.log(np.quantile(ratios, _INTERVAL)) - np.log(new / old)
    ends = equal.wider(ends, max(correlated) / batch_steps(spans[0]))
    wider = max(
        each.few_blocks_factor(weight) for each, weight in zip(blocks, weights, strict=True)
    )
    low, high = new / old * np.exp(wider * ends) - 1
    return MeasuredChange(
        measure.name,
        measure.unit,
        old,
        new,
        new / old - 1,
        float(low),
        float(high),
        measure.more_is_better,
    )


def _values(
    estimate: Estimate,
    spans: tuple[SpanMinutes, SpanMinutes],
    weights: tuple[Floats, Floats],
) -> tuple[float, float]:
    old, new = (
        float(estimate(span, each[None, :])[0]) for span, each in zip(spans, weights, strict=True)
    )
    return old, new


def _only(span: SpanMinutes, minutes: NDArray[np.bool_]) -> SpanMinutes:
    """The span with all other minutes unknown."""
    return replace(span, requests=np.where(minutes, span.requests, np.nan))


def _weighted(above: Floats, below: Floats, weights: Floats, factor: float = 1.0) -> Floats:
    known = np.isfinite(above) & np.isfinite(below)
    over = weights @ np.where(known, above, 0.0)
    under = weights @ np.where(known, below, 0.0)
    return quotient(factor * over, under)


def _first_token(span: SpanMinutes, weights: Floats) -> Floats:
    """Quantile of the time to first token, linear within its bucket, like histogram_quantile."""
    buckets = span.first_token_buckets
    if not buckets.size:
        return np.full(len(weights), np.nan)
    known = np.isfinite(buckets).all(axis=0)
    counts = np.maximum.accumulate(weights @ np.where(known, buckets, 0.0).T, axis=1)
    wanted = _QUANTILE * counts[:, -1]
    at = (counts < wanted[:, None]).sum(axis=1)
    # Quantiles beyond the last finite bound are reported as that bound.
    lows = np.array([0.0, *span.first_token_bounds[:-1]])
    highs = np.array([*span.first_token_bounds[:-1], span.first_token_bounds[-2]])
    padded = np.hstack([np.zeros((len(weights), 1)), counts])
    rows = np.arange(len(weights))
    below, inside = padded[rows, at], padded[rows, at + 1] - padded[rows, at]
    part = np.divide(wanted - below, inside, out=np.ones(len(weights)), where=inside > 0)
    found: Floats = np.where(counts[:, -1] > 0, lows[at] + (highs[at] - lows[at]) * part, np.nan)
    return found


def _most_first_token(span: SpanMinutes) -> float:
    """The largest finite bound of its histogram."""
    return span.first_token_bounds[-2] if len(span.first_token_bounds) > 1 else np.inf


def _has_first_token(span: SpanMinutes) -> NDArray[np.bool_]:
    buckets = span.first_token_buckets
    if not buckets.size:
        return np.zeros(span.steps, dtype=np.bool_)
    found: NDArray[np.bool_] = np.isfinite(buckets).all(axis=0) & (buckets[-1] > 0)
    return found


def _has_between(span: SpanMinutes) -> NDArray[np.bool_]:
    return np.isfinite(span.between_tokens_seconds) & (span.between_tokens_count > 0)


def _has_tokens(span: SpanMinutes) -> NDArray[np.bool_]:
    return np.isfinite(span.prompt_tokens + span.output_tokens)


_MEASURES = (
    _Measure(
        "tokens_per_gpu_second",
        "tokens/s/GPU",
        more_is_better=True,
        estimate=lambda span, w: _weighted(span.prompt_tokens + span.output_tokens, span.gpus, w),
        known=_has_tokens,
    ),
    _Measure(
        "output_tokens_per_gpu_second",
        "tokens/s/GPU",
        more_is_better=True,
        estimate=lambda span, w: _weighted(span.output_tokens, span.gpus, w),
        known=lambda span: np.isfinite(span.output_tokens),
    ),
    _Measure(
        "time_to_first_token_p95_seconds",
        "s",
        more_is_better=False,
        estimate=_first_token,
        known=_has_first_token,
        most=_most_first_token,
    ),
    _Measure(
        "inter_token_latency_mean_seconds",
        "s",
        more_is_better=False,
        estimate=lambda span, w: _weighted(
            span.between_tokens_seconds, span.between_tokens_count, w
        ),
        known=_has_between,
    ),
    _Measure(
        "joules_per_million_tokens",
        "J",
        more_is_better=False,
        estimate=lambda span, w: _weighted(
            span.watts, span.prompt_tokens + span.output_tokens, w, _MILLION
        ),
        known=lambda span: np.isfinite(span.watts) & _has_tokens(span),
    ),
)
