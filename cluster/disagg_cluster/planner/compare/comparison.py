"""Two spans compared: each measure before and after, at equal load, with its interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.compare.matching import MatchedMinutes, UndecidedComparison, match
from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats

BLOCK_SECONDS = 900.0
"""Minutes beside each other are alike: they are drawn again in blocks of so long."""
RESAMPLES = 1000
_INTERVAL = (0.05, 0.95)
_QUANTILE = 0.95
_MILLION = 1e6

Estimate = Callable[[SpanMinutes, Floats], Floats]
"""A measure of a span for each row of weights of its minutes; NaN where it is not known."""


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

    Measures are ratios of sums over weighted minutes. Intervals are by the moving block bootstrap
    (Künsch 1989): blocks of a quarter of an hour of each span are drawn again and again.
    """
    matched = match(before, after)
    if isinstance(matched, UndecidedComparison):
        return matched
    measures = tuple(
        _change(name, unit, more, estimate, (before, after), matched)
        for name, unit, more, estimate in _MEASURES
    )
    return Comparison(measures, matched.matched_ratio, matched.unmatched)


def _change(
    name: str,
    unit: str,
    more_is_better: bool,
    estimate: Estimate,
    spans: tuple[SpanMinutes, SpanMinutes],
    matched: MatchedMinutes,
) -> MeasuredChange | UnknownMeasure:
    weights = (matched.before, matched.after)
    old, new = (
        float(estimate(span, each[None, :])[0]) for span, each in zip(spans, weights, strict=True)
    )
    for when, value in (("before", old), ("after", new)):
        if not (np.isfinite(value) and value > 0):
            return UnknownMeasure(name, unit, f"it is not known in the minutes {when}")
    generator = np.random.default_rng(0)
    drawn = [
        estimate(span, _resampled(span, weight, generator))
        for span, weight in zip(spans, weights, strict=True)
    ]
    ratios = drawn[1] / drawn[0] - 1
    low, high = np.quantile(ratios[np.isfinite(ratios)], _INTERVAL)
    return MeasuredChange(
        name, unit, old, new, new / old - 1, float(low), float(high), more_is_better
    )


def _resampled(span: SpanMinutes, weights: Floats, generator: np.random.Generator) -> Floats:
    """`[resample, minute]`: weights times how often a block that holds the minute was drawn."""
    length = max(1, min(round(BLOCK_SECONDS / span.step_seconds), len(weights)))
    blocks = -(-len(weights) // length)
    starts = generator.integers(0, len(weights), (RESAMPLES, blocks))
    # Blocks go on from the end at the beginning, so that every minute is drawn as often.
    at = (starts[..., None] + np.arange(length)) % len(weights)
    offsets = np.arange(RESAMPLES)[:, None] * len(weights)
    counts = np.bincount(
        (at.reshape(RESAMPLES, -1) + offsets).ravel(), minlength=RESAMPLES * len(weights)
    )
    found: Floats = counts.reshape(RESAMPLES, -1) * weights
    return found


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


_MEASURES: tuple[tuple[str, str, bool, Estimate], ...] = (
    (
        "tokens_per_gpu_second",
        "tokens/s/GPU",
        True,
        lambda span, w: _quotient(span.prompt_tokens + span.output_tokens, span.gpus, w),
    ),
    (
        "output_tokens_per_gpu_second",
        "tokens/s/GPU",
        True,
        lambda span, w: _quotient(span.output_tokens, span.gpus, w),
    ),
    ("time_to_first_token_p95_seconds", "s", False, _first_token),
    (
        "inter_token_latency_mean_seconds",
        "s",
        False,
        lambda span, w: _quotient(span.between_tokens_seconds, span.between_tokens_count, w),
    ),
    (
        "joules_per_million_tokens",
        "J",
        False,
        lambda span, w: _quotient(span.watts, span.prompt_tokens + span.output_tokens, w, _MILLION),
    ),
)
