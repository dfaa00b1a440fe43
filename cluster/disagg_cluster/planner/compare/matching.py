"""Which minutes of two spans are alike: by how many requests came, and how long prompts were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats

_LOAD_FACTOR, _LENGTH_FACTOR = 1.2, 1.3
_LENGTHS = 1000
"""More than there are strata of length for one of load."""
_NONE = np.iinfo(np.int64).min
LEAST_MINUTES = 30
"""Fewer matched minutes of a span compare nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedMinutes:
    """How much each minute counts, so that both spans have the same mix of strata.

    Weights are 0 for minutes without a like in the other span, and sum to 1. `unmatched` says in
    words what had none, and `matched_ratio` which share of the known minutes of each span had one.
    """

    before: Floats
    after: Floats
    matched_ratio: tuple[float, float]
    unmatched: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UndecidedComparison:
    """Nothing can be compared, and why."""

    why: str


def match(before: SpanMinutes, after: SpanMinutes) -> MatchedMinutes | UndecidedComparison:
    """Put the minutes of both into strata of load and of prompt length, and weigh them alike.

    Minutes of a stratum are within a fifth of each other in load, and within a third in length. A
    stratum that both spans have counts as much as in the span that has less of it; the others
    count for nothing.
    """
    spans = (before, after)
    strata = [_strata(span) for span in spans]
    for name, found in zip(("before", "after"), strata, strict=True):
        if (found != _NONE).sum() < LEAST_MINUTES:
            return UndecidedComparison(
                f"{int((found != _NONE).sum())} minutes {name} of which requests, tokens and GPUs "
                f"are known; a comparison needs {LEAST_MINUTES}"
            )
    shares = [_shares(each) for each in strata]
    common = {
        each: min(shares[0][each], shares[1][each]) for each in shares[0] if each in shares[1]
    }
    likes = [np.isin(each, list(common)) for each in strata]
    unmatched = tuple(
        _unmatched(name, span, each != _NONE, like)
        for name, span, each, like in zip(("before", "after"), spans, strata, likes, strict=True)
        if (like != (each != _NONE)).any()
    )
    if min(like.sum() for like in likes) < LEAST_MINUTES:
        return UndecidedComparison(
            f"{likes[0].sum()} minutes before and {likes[1].sum()} after are alike in load and "
            f"prompt length; a comparison needs {LEAST_MINUTES} of each: {'; '.join(unmatched)}"
        )
    weights = [_weights(each, common) for each in strata]
    ratios = [
        float(like.sum() / (each != _NONE).sum()) for like, each in zip(likes, strata, strict=True)
    ]
    return MatchedMinutes(weights[0], weights[1], (ratios[0], ratios[1]), unmatched)


def _strata(span: SpanMinutes) -> NDArray[np.int64]:
    """A number for each minute, `_NONE` where not all is known."""
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
    name: str, span: SpanMinutes, known: NDArray[np.bool_], like: NDArray[np.bool_]
) -> str:
    """What the minutes without a like were, in words."""
    alone = known & ~like
    low, high = np.quantile(span.requests[alone], (0.05, 0.95))
    short, long = np.quantile(span.prompt_lengths[alone], (0.05, 0.95))
    return (
        f"{alone.sum() / known.sum():.0%} of the minutes {name} have no like: {low:.3g} to "
        f"{high:.3g} requests/s with prompts of {short:.3g} to {long:.3g} tokens"
    )
