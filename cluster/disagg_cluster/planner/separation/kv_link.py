"""The link that carries a prompt's KV from the prefill to the decode engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.planner.capacity.request_mix import RequestMix


@dataclass(frozen=True, slots=True)
class KvLink:
    """Rate at which one engine can send or receive, one transfer after the other.

    `latency_seconds` is the time of a transfer besides that of its bytes.

    Raises:
        ValueError: The bandwidth is not above 0, or the latency below 0.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0:
            raise ValueError(f"bytes_per_second is {self.bytes_per_second}, not a number above 0")
        if not 0 <= self.latency_seconds < math.inf:
            raise ValueError(f"latency_seconds is {self.latency_seconds}, not a time from 0")

    def transfer_seconds(self, mix: RequestMix, kv_bytes_per_token: float) -> float:
        """Transfer time of a prompt's KV, cached tokens included."""
        tokens = mix.prompt_tokens + mix.cached_tokens
        return self.latency_seconds + tokens * self.token_seconds(kv_bytes_per_token)

    def token_seconds(self, kv_bytes_per_token: float) -> float:
        """The part of it for each token of a prompt."""
        return kv_bytes_per_token / self.bytes_per_second
