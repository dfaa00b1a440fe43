"""The shape of the demo's load over time: from prompt-heavy to output-heavy and back."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mix:
    """What arrives at one moment: requests a second, and the tokens of each."""

    requests_per_second: float
    prompt_tokens: int
    output_tokens: int


PROMPT_HEAVY = Mix(requests_per_second=12.0, prompt_tokens=4000, output_tokens=6)
"""Summaries and search: prefill has most of its GPUs busy, decode rests half of the time."""
OUTPUT_HEAVY = Mix(requests_per_second=6.0, prompt_tokens=400, output_tokens=160)
"""Chat and code: decode never rests, prefill hardly works."""

TINY_PROMPT_HEAVY = Mix(requests_per_second=2.0, prompt_tokens=150, output_tokens=4)
TINY_OUTPUT_HEAVY = Mix(requests_per_second=1.0, prompt_tokens=10, output_tokens=48)
"""The same two ends for a tiny model on a few CPU cores, within 1,024 tokens a request."""


@dataclass(frozen=True, slots=True)
class LoadShape:
    """A load that swings between two mixes; it begins half-way, on its way to `high`.

    In between all three figures move geometrically, so that the ratio of the phases passes
    through its whole range evenly and does not jump at one end.
    """

    high: Mix = PROMPT_HEAVY
    low: Mix = OUTPUT_HEAVY
    period_seconds: float = 180.0

    def rate(self, t_seconds: float) -> Mix:
        """The mix `t_seconds` after the start."""
        weight = (1 + math.sin(2 * math.pi * t_seconds / self.period_seconds)) / 2
        return Mix(
            requests_per_second=_between(
                self.low.requests_per_second, self.high.requests_per_second, weight
            ),
            prompt_tokens=round(_between(self.low.prompt_tokens, self.high.prompt_tokens, weight)),
            output_tokens=round(_between(self.low.output_tokens, self.high.output_tokens, weight)),
        )


def _between(low: float, high: float, weight: float) -> float:
    return math.exp((1 - weight) * math.log(low) + weight * math.log(high))
