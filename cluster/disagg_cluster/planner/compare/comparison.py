"""Two spans compared: each measure before and after, at equal load, with its interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.compare.matching import LEAST_MINUTES, UndecidedComparison, match
from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats

LEAST_BLOCK_SECONDS = 900.0
"""Minutes beside each other are alike: they are drawn again in blocks of so long at least."""
MOST_BLOCKS = 8
"""A longer span has longer blocks: loads and latencies may wander as slowly as it is long."""
RESAMPLES = 1000
_MOST_AT_A_TIME = 2_000_000
_INTERVAL = (0.05, 0.95)
_NORMAL = 1.645
# Student's t for 95 %, by degrees of freedom from 1 on: few blocks know little of how they vary.
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)
_QUANTILE = 0.95
_WHEN = ("before", "after")
_MILLION = 1e6

Estimate = Callable[[SpanMinutes, Floats], Floats]
"""A measure of a span for each row of weights of its minutes; NaN where it is not known."""


@dataclass(frozen=True, slots=True)
class _Measure:
    """What is measured; `known` says in which minutes."""

    name: str
    unit: str
    more_is_better: bool
    estimate: Estimate
    known: Callable[[SpanMinutes], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """One measure; `change_ratio` is after over before less 1, `low` and `high` its 90 % interval.

    `more_is_better` says which way is good.
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
        """Better, worse, or no difference that is sure."""
        if self.low <= 0 <= self.high:
            return "no sure difference"
        return "better" if (self.change_ratio > 0) is self.more_is_better else "worse"


@dataclass(frozen=True, slots=True)
class UnknownMeasure:
    """A measure that one of the spans does not tell, and why."""

    name: str
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measures, and how much of each span could be matched."""

    measures: tuple[MeasuredChange | UnknownMeasure, ...]
    matched_ratio: tuple[float, float]
    unmatched: tuple[str, ...]


def compare(before: SpanMinutes, after: SpanMinutes) -> Comparison | UndecidedComparison:
    """Compare two spans at equal load.

    Measures are ratios of sums over weighted minutes; each takes the minutes that tell it, matched
    anew. Intervals are by the moving block bootstrap (Künsch 1989), and wider for few blocks.
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

    told = tuple(measure.known(span) for span in spans)
    for when, minutes in zip(_WHEN, told, strict=True):
        if not minutes.any():
            return unknown(f"it is not known in the minutes {when}")
    matched = match(*(_only(span, minutes) for span, minutes in zip(spans, told, strict=True)))
    if isinstance(matched, UndecidedComparison):
        return unknown(f"fewer than {LEAST_MINUTES} minutes that tell it are alike")
    weights = (matched.before, matched.after)
    old, new = (
        float(measure.estimate(span, each[None, :])[0])
        for span, each in zip(spans, weights, strict=True)
    )
    for when, value in zip(_WHEN, (old, new), strict=True):
        if not (np.isfinite(value) and value > 0):
            return unknown(f"it is 0 in the minutes {when}")
    generator = np.random.default_rng(0)
    drawn = [
        np.concatenate(
            [measure.estimate(span, rows) for rows in _resampled(span, weight, generator)]
        )
        for span, weight in zip(spans, weights, strict=True)
    ]
    ratios = drawn[1] / drawn[0]
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    ends = np.log(np.quantile(ratios, _INTERVAL)) - np.log(new / old)
    wider = max(_for_few(span, weight) for span, weight in zip(spans, weights, strict=True))
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


def _only(span: SpanMinutes, minutes: NDArray[np.bool_]) -> SpanMinutes:
    """The span as if of the other minutes nothing were known."""
    return replace(span, requests=np.where(minutes, span.requests, np.nan))


def _block_steps(span: SpanMinutes) -> int:
    least = round(LEAST_BLOCK_SECONDS / span.step_seconds)
    return max(1, min(max(least, -(-span.steps // MOST_BLOCKS)), span.steps))


def _for_few(span: SpanMinutes, weights: Floats) -> float:
    """How much wider an interval is of as few blocks as the minutes that count make.

    Blocks drawn again vary by (n - 1) / n of what they should, and by Student's t at that.
    """
    counted = 1 / float(np.square(weights).sum())
    blocks = max(2.0, counted / _block_steps(span))
    student = _STUDENT[min(int(blocks) - 1, len(_STUDENT)) - 1]
    return student / _NORMAL * float(np.sqrt(blocks / (blocks - 1)))


def _resampled(
    span: SpanMinutes, weights: Floats, generator: np.random.Generator
) -> Iterator[Floats]:
    """`[resample, minute]`, some at a time: weights times how often a minute was drawn."""
    steps, length = len(weights), _block_steps(span)
    at_a_time = max(1, min(RESAMPLES, _MOST_AT_A_TIME // steps))
    for first in range(0, RESAMPLES, at_a_time):
        rows = min(at_a_time, RESAMPLES - first)
        starts = generator.integers(0, steps, (rows, -(-steps // length)))
        # Blocks go on from the end at the beginning, so that every minute is drawn as often.
        at = (starts[..., None] + np.arange(length)) % steps
        at += (np.arange(rows) * steps)[:, None, None]
        yield np.bincount(at.ravel(), minlength=rows * steps).reshape(rows, steps) * weights


def _quotient(above: Floats, below: Floats, weights: Floats, factor: float = 1.0) -> Floats:
    known = np.isfinite(above) & np.isfinite(below)
    over = weights @ np.where(known, above, 0.0)
    under = weights @ np.where(known, below, 0.0)
    found = np.full(len(weights), np.nan)
    np.divide(factor * over, under, out=found, where=under > 0)
    return found


def _first_token(span: SpanMinutes, weights: Floats) -> Floats:
    """The quantile of the time to first token, linear within its bucket, as histogram_quantile."""
    buckets = span.first_token_buckets
    if not buckets.size:
        return np.full(len(weights), np.nan)
    known = np.isfinite(buckets).all(axis=0)
    counts = np.maximum.accumulate(weights @ np.where(known, buckets, 0.0).T, axis=1)
    wanted = _QUANTILE * counts[:, -1]
    at = (counts < wanted[:, None]).sum(axis=1)
    # Beyond the last finite bound nothing is known but that.
    lows = np.array([0.0, *span.first_token_bounds[:-1]])
    highs = np.array([*span.first_token_bounds[:-1], span.first_token_bounds[-2]])
    padded = np.hstack([np.zeros((len(weights), 1)), counts])
    rows = np.arange(len(weights))
    below, inside = padded[rows, at], padded[rows, at + 1] - padded[rows, at]
    part = np.divide(wanted - below, inside, out=np.ones(len(weights)), where=inside > 0)
    found: Floats = np.where(counts[:, -1] > 0, lows[at] + (highs[at] - lows[at]) * part, np.nan)
    return found


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
        True,
        lambda span, w: _quotient(span.prompt_tokens + span.output_tokens, span.gpus, w),
        _has_tokens,
    ),
    _Measure(
        "output_tokens_per_gpu_second",
        "tokens/s/GPU",
        True,
        lambda span, w: _quotient(span.output_tokens, span.gpus, w),
        lambda span: np.isfinite(span.output_tokens),
    ),
    _Measure("time_to_first_token_p95_seconds", "s", False, _first_token, _has_first_token),
    _Measure(
        "inter_token_latency_mean_seconds",
        "s",
        False,
        lambda span, w: _quotient(span.between_tokens_seconds, span.between_tokens_count, w),
        _has_between,
    ),
    _Measure(
        "joules_per_million_tokens",
        "J",
        False,
        lambda span, w: _quotient(span.watts, span.prompt_tokens + span.output_tokens, w, _MILLION),
        lambda span: np.isfinite(span.watts) & _has_tokens(span),
    ),
)
