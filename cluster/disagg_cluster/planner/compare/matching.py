"""Matches minutes of two spans by request rate and prompt length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats
from disagg_exporter.model.counted import counted

_LOAD_FACTOR, _LENGTH_FACTOR = 1.2, 1.3
_LENGTHS = 1000
"""More than the strata of length within a stratum of load."""
_NONE = np.iinfo(np.int64).min
LEAST_MINUTES = 30
"""A comparison needs at least so many matched minutes of each span."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedMinutes:
    """Weights of minutes that give both spans the same mix of strata.

    Weights sum to 1 and are 0 for minutes without a match in the other span. `unmatched` describes
    those in words; `matched_ratio` is the matched share of the known minutes of each span.
    """

    before: Floats
    after: Floats
    matched_ratio: tuple[float, float]
    unmatched: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UndecidedComparison:
    """Why nothing can be compared."""

    why: str


def match(before: SpanMinutes, after: SpanMinutes) -> MatchedMinutes | UndecidedComparison:
    """Put minutes into strata of load and prompt length, and weight both spans equally.

    Minutes of a stratum are within a fifth of each other in load, and within a third in length. The
    weight of a stratum is its smaller share of the two spans; strata of one span only have none.
    """
    spans = (before, after)
    strata = [_strata(span) for span in spans]
    for name, found in zip(("before", "after"), strata, strict=True):
        known = int((found != _NONE).sum())
        if known < LEAST_MINUTES:
            return UndecidedComparison(
                f"{counted(known, 'minute')} {name} of which requests, tokens and GPUs are known; "
                f"a comparison needs {LEAST_MINUTES}"
            )
    shares = [_shares(each) for each in strata]
    common = {
        each: min(shares[0][each], shares[1][each]) for each in shares[0] if each in shares[1]
    }
    matched = [np.isin(each, list(common)) for each in strata]
    unmatched = tuple(
        _unmatched(name, span, each != _NONE, found)
        for name, span, each, found in zip(("before", "after"), spans, strata, matched, strict=True)
        if (found != (each != _NONE)).any()
    )
    if min(each.sum() for each in matched) < LEAST_MINUTES:
        return UndecidedComparison(
            f"{counted(int(matched[0].sum()), 'minute')} before and {matched[1].sum()} after are "
            "alike in load and prompt length; a comparison needs "
            f"{LEAST_MINUTES} of each: {'; '.join(unmatched)}"
        )
    weights = [_weights(each, common) for each in strata]
    ratios = [
        float(found.sum() / (each != _NONE).sum())
        for found, each in zip(matched, strata, strict=True)
    ]
    return MatchedMinutes(weights[0], weights[1], (ratios[0], ratios[1]), unmatched)


def _strata(span: SpanMinutes) -> NDArray[np.int64]:
    """The stratum of each minute as a number, `_NONE` where it is unknown."""
    lengths = span.prompt_lengths
    known = np.isfinite(lengths) & (span.requests > 0) & (lengths > 0) & (span.gpus > 0)
    found = np.full(span.steps, _NONE, dtype=np.int64)
    load = np.floor(np.log(span.requests[known]) / np.log(_LOAD_FACTOR)).astype(np.int64)
    length = np.floor(np.log(lengths[known]) / np.log(_LENGTH_FACTOR)).astype(np.int64)
    found[known] = load * _LENGTHS + length
    return found


def _shares(strata: NDArray[np.int64]) -> dict[int, float]:
    numbers, counts = np.unique(strata[strata != _NONE], return_counts=True)
    return dict(zip(numbers.tolist(), (counts / counts.sum()).tolist(), strict=True))


def _weights(strata: NDArray[np.int64], common: dict[int, float]) -> Floats:
    found: Floats = np.zeros(len(strata))
    for number, share in common.items():
        inside = strata == number
        found[inside] = share / inside.sum()
    found /= found.sum()
    return found


def _unmatched(
    name: str, span: SpanMinutes, known: NDArray[np.bool_], matched: NDArray[np.bool_]
) -> str:
    """Describe the minutes without a match."""
    alone = known & ~matched
    low, high = np.quantile(span.requests[alone], (0.05, 0.95))
    short, long = np.quantile(span.prompt_lengths[alone], (0.05, 0.95))
    return (
        f"{alone.sum() / known.sum():.0%} of the minutes {name} have no match: {low:.3g} to "
        f"{high:.3g} requests/s with prompts of {short:.3g} to {long:.3g} tokens"
    )
