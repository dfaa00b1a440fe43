"""The way of a prompt's KV from the prefill to the decode engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.planner.capacity.request_mix import RequestMix

_CARRIED = (1.0, 0.75, 0.6825, 0.6553, 0.6399, 0.6302, 0.6234, 0.6184)
_CARRIED_BY_MANY = 0.5858


@dataclass(frozen=True, slots=True)
class KvLink:
    """What one engine can send or take, one transfer after the other.

    `latency_seconds` is what a transfer takes besides its bytes.

    Raises:
        ValueError: It carries nothing, or a latency is below 0.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0:
            raise ValueError(f"bytes_per_second is {self.bytes_per_second}, not a number above 0")
        if not 0 <= self.latency_seconds < math.inf:
            raise ValueError(f"latency_seconds is {self.latency_seconds}, not a time from 0")

    def transfer_seconds(self, mix: RequestMix, kv_bytes_per_token: float) -> float:
        """How long the KV of a prompt travels, what a cache had of it included."""
        size_bytes = (mix.prompt_tokens + mix.cached_tokens) * kv_bytes_per_token
        return self.latency_seconds + size_bytes / self.bytes_per_second


def waiting_seconds(
    transfer_seconds: float,
    requests_per_second: float,
    senders: int,
    takers: int,
    late_share: float,
) -> float:
    """How long all but this share of transfers wait at most; infinite where they pile up.

    Once for the sender and once for the taker, each M/D/1 (Pollaczek and Khinchine: u / 2 (1 - u)
    of a transfer in the mean), with a tail that falls exponentially. A sender whose next prompt
    goes to a busy taker idles, so that links carry only a part of what they could.
    """
    carried = _carried_share(min(senders, takers))
    used = [
        requests_per_second * transfer_seconds / (links * carried) for links in (senders, takers)
    ]
    if max(used) >= 1:
        return math.inf
    mean = sum(transfer_seconds * each / (2 * (1 - each)) for each in used)
    return mean * max(1.0, -math.log(late_share))


def _carried_share(links: int) -> float:
    """What first-come, first-served leaves of so many inputs to as many outputs when all are full.

    Karol, Hluchyj and Morgan, "Input versus output queueing on a space-division packet switch",
    IEEE Trans. Communications 35 (1987), table I.
    """
    return _CARRIED[links - 1] if links <= len(_CARRIED) else _CARRIED_BY_MANY
