"""The shape of the demo's load over time: from prompt-heavy to output-heavy and back."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.simulator.load import Mix, Shifting

PROMPT_HEAVY = Mix(requests_per_second=12.0, prompt_tokens=4000, output_tokens=6)
"""Summaries and search: prefill has most of its GPUs busy, decode rests half of the time."""
OUTPUT_HEAVY = Mix(requests_per_second=6.0, prompt_tokens=400, output_tokens=160)
"""Chat and code: decode never rests, prefill hardly works."""

TINY_PROMPT_HEAVY = Mix(requests_per_second=2.0, prompt_tokens=150, output_tokens=4)
TINY_OUTPUT_HEAVY = Mix(requests_per_second=1.0, prompt_tokens=10, output_tokens=48)
"""The same two ends for a tiny model on a few CPU cores, within 1,024 tokens a request."""


@dataclass(frozen=True, slots=True)
class LoadShape(Shifting):
    """A load that swings between the two ends within three minutes."""

    high: Mix = PROMPT_HEAVY
    low: Mix = OUTPUT_HEAVY
    period_seconds: float = 180.0
