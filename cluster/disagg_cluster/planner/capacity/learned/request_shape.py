"""What requests were like of late beside their number and mean lengths, as it was measured.

Two kinds of requests have a mean that is like neither. Capacities ask three things more: how much
prompts differ (long ones attend to more, and others wait behind them), how much outputs differ, and
what a decoding request holds. With prompts P and outputs O that is E[O (P + O/2)] / E[O]: far less
than means tell where long outputs follow short prompts, and more where long follows long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from disagg_cluster.planner.capacity.request_mix import RequestMix

SHAPE_SECONDS = 900.0
"""Over so long it is measured: shorter is chance, longer is late."""
_TRUSTED_REQUESTS = 50.0
"""Of so many requests half is believed, and of fewer less."""
_BEYOND = 2.0
"""Lengths in the last bucket are taken to reach so many times its bound."""
_MOST_DISPERSION = 100.0
_MOST_FACTOR = 16.0
# Tokens without requests are of no length.
_MOST_TOKENS = 1e7


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How lengths differed and what a decoding request held, in the mean; None if nobody told.

    Dispersions are squared coefficients of variation. All is of so many `requests`.
    """

    requests: float = 0.0
    prompt_dispersion: float | None = None
    output_dispersion: float | None = None
    context_tokens: float | None = None

    def of(self, like: RequestMix, prompt_tokens: float, output_tokens: float) -> RequestMix:
        """Requests like these.

        Args:
            like: What else is known of them, and what is taken where nothing was measured.
            prompt_tokens: Computed for a prompt, in the mean of the same time.
            output_tokens: Of an output.
        """
        believed = self.requests / (self.requests + _TRUSTED_REQUESTS)

        def dispersion(measured: float | None, taken: float) -> float:
            if measured is None:
                return taken
            return taken + believed * (min(measured, _MOST_DISPERSION) - taken)

        like = replace(
            like,
            prompt_dispersion=dispersion(self.prompt_dispersion, like.prompt_dispersion),
            output_dispersion=dispersion(self.output_dispersion, like.output_dispersion),
            context_factor=1.0,
        )
        if not self.context_tokens:
            return like
        lately = replace(
            like,
            prompt_tokens=min(max(1.0, prompt_tokens), _MOST_TOKENS),
            output_tokens=min(max(1.0, output_tokens), _MOST_TOKENS),
        )
        ratio = self.context_tokens / lately.context_tokens
        factor = float(np.clip(ratio, 1 / _MOST_FACTOR, _MOST_FACTOR)) ** believed
        return replace(like, context_factor=factor)


def dispersion_of(bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """The squared coefficient of variation of lengths by their histogram; None of no lengths.

    Within a bucket any order of magnitude is as likely as any other.

    Args:
        bounds: Upper bounds of the buckets, rising; the last may be infinite.
        counts: How many lengths are in each alone.
    """
    uppers = [each for each in bounds if np.isfinite(each) and each > 0]
    total = sum(counts)
    if not total > 0 or not uppers:
        return None
    # Of the first bucket one length in ten is a tenth of its bound.
    edges = [uppers[0] / 10, *uppers]
    if not np.isfinite(bounds[-1]):
        edges.append(_BEYOND * uppers[-1])
    first = second = 0.0
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        decades = np.log(high / low)
        first += count * (high - low) / decades
        second += count * (high**2 - low**2) / (2 * decades)
    return max(0.0, float(second * total / first**2 - 1))
