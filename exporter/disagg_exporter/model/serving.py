"""What an engine counts of the requests it serves: how long they took, what it moved for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Total(StrEnum):
    """A number that only grows while its engine lives.

    `QUEUE_*` is from a request's arrival to its first step (KV that must arrive first is waited
    for in it), `FIRST_TOKEN_*` from there to its first token, `KV_STAGE_*` the sending of its KV,
    where the engine clocks that as a stage of the request. `TRANSFER_*` is the transfers' own time.
    """

    FINISHED_REQUESTS = "finished_requests"
    PREEMPTIONS = "preemptions"
    QUEUE_SECONDS = "queue_seconds"
    QUEUE_REQUESTS = "queue_requests"
    FIRST_TOKEN_SECONDS = "first_token_seconds"
    FIRST_TOKEN_REQUESTS = "first_token_requests"
    KV_STAGE_SECONDS = "kv_stage_seconds"
    KV_STAGE_REQUESTS = "kv_stage_requests"
    TRANSFERS = "transfers"
    TRANSFER_SECONDS = "transfer_seconds"
    TRANSFER_BYTES = "transfer_bytes"
    FAILED_TRANSFERS = "failed_transfers"
    FAILED_NOTIFICATIONS = "failed_notifications"
    FAILED_RECEIVES = "failed_receives"
    FAILED_BOOTSTRAPS = "failed_bootstraps"
    EXPIRED_TRANSFERS = "expired_transfers"

    @property
    def seconds(self) -> bool:
        """Whether it is a sum of durations, which one negative duration makes fall."""
        return self.endswith("_seconds")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations by upper bound; `counts` are cumulative and hold one more, all of them."""

    bounds_seconds: tuple[float, ...]
    counts: tuple[float, ...]
    sum_seconds: float


@dataclass(frozen=True, slots=True)
class ServingCounts:
    """What an engine has counted since some moment; what it does not tell is not there."""

    totals: Mapping[Total, float] = field(default_factory=dict)
    time_to_first_token: Histogram | None = None
    inter_token_latency: Histogram | None = None
