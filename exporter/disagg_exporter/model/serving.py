"""Request counts: of one engine, and of one model from every source that knows it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_exporter.model.enums import LabelEnum, Role


class Total(StrEnum):
    """A number that only grows while its engine lives.

    `ARRIVED_REQUESTS` are all that were ever accepted: finished, running and waiting. `ENDED_*` are
    those that finished, by how. `QUEUE_*` is from a request's arrival to its first step (including
    the wait for KV that must arrive first), `FIRST_TOKEN_*` from there to its first token,
    `KV_STAGE_*` the sending of its KV, where the engine times that as a stage of the request.
    `TRANSFER_*` is the transfers' own time. `*_PROMPT_TOKENS` are the tokens of prompts by the
    origin of their KV.
    """

    FINISHED_REQUESTS = "finished_requests"
    ARRIVED_REQUESTS = "arrived_requests"
    ENDED_STOP = "ended_stop"
    ENDED_LENGTH = "ended_length"
    ENDED_ABORT = "ended_abort"
    ENDED_ERROR = "ended_error"
    ENDED_SUCCESS = "ended_success"
    ENDED_OTHER = "ended_other"
    REJECTED_FOR_REQUESTS = "rejected_for_requests"
    REJECTED_FOR_TOKENS = "rejected_for_tokens"
    REJECTED_FOR_LOAD = "rejected_for_load"
    COMPUTED_PROMPT_TOKENS = "computed_prompt_tokens"
    CACHED_PROMPT_TOKENS = "cached_prompt_tokens"
    TRANSFERRED_PROMPT_TOKENS = "transferred_prompt_tokens"
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
        """Whether it is a sum of durations, which a negative duration makes decrease."""
        return self.endswith("_seconds")


ENDINGS: Mapping[str, Total] = {
    "stop": Total.ENDED_STOP,
    "length": Total.ENDED_LENGTH,
    "abort": Total.ENDED_ABORT,
    "error": Total.ENDED_ERROR,
    "success": Total.ENDED_SUCCESS,
    "other": Total.ENDED_OTHER,
}
"""How requests end, as label values; `success` where stop and length are not distinguished."""

REJECTIONS: Mapping[str, Total] = {
    "queued_requests": Total.REJECTED_FOR_REQUESTS,
    "queued_tokens": Total.REJECTED_FOR_TOKENS,
    "overload": Total.REJECTED_FOR_LOAD,
}
"""Why a request is rejected on arrival, as label values."""

PROMPT_TOKENS: Mapping[str, Total] = {
    "computed": Total.COMPUTED_PROMPT_TOKENS,
    "cached": Total.CACHED_PROMPT_TOKENS,
    "transferred": Total.TRANSFERRED_PROMPT_TOKENS,
}
"""Where the KV of a prompt's tokens came from, as label values."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by upper bound; `counts` are cumulative, with one more entry for all of them."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def total(self) -> float:
        """Number of observations."""
        return self.counts[-1]

    def at(self, bounds: tuple[float, ...]) -> Histogram:
        """Return the same observations by other bounds, in ascending order.

        For a bound that is not among its own, the count at its next lower bound is used:
        observations in between move up, so no quantile is too low.
        """
        if bounds == self.bounds:
            return self
        below = (bisect_right(self.bounds, bound) for bound in bounds)
        counts = (self.counts[place - 1] if place else 0.0 for place in below)
        return Histogram(bounds, (*counts, self.counts[-1]), self.sum)


@dataclass(frozen=True, slots=True)
class ServingCounts:
    """What an engine has counted since some moment; what it does not report is absent.

    `duration` is from a request's arrival to its end, in seconds like the two before it;
    `prompt_tokens` and `output_tokens` are its lengths.
    """

    totals: Mapping[Total, float] = field(default_factory=dict)
    time_to_first_token: Histogram | None = None
    inter_token_latency: Histogram | None = None
    duration: Histogram | None = None
    prompt_tokens: Histogram | None = None
    output_tokens: Histogram | None = None


class RequestSource(LabelEnum):
    """Source of what is known of users' requests, best first.

    `pools`: combined from prefill engines and decode engines, neither of which sees the whole.
    """

    FRONTEND = "frontend"
    ROUTER = "router"
    ENGINE = "engine"
    POOLS = "pools"


class Part(LabelEnum):
    """The part of a user's wait that one engine measures where two handle a request in turn.

    From a request's arrival at the prefill engine to the token there; from its arrival at the
    decode engine to the first token there, and to the last.
    """

    PREFILL = "prefill"
    FIRST_DECODE = "first_decode"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class FrontCounts:
    """What a frontend or router has counted of each model's requests, by served model name.

    `is_stale`: the last read is too old to say what users experience there. `left_out_models` is
    the number of models on its page that are not counted, as there are too many. `waiting` are each
    model's requests that wait there now for an engine to be chosen.
    """

    source: RequestSource
    name: str
    by_model: Mapping[str, ServingCounts] = field(default_factory=dict)
    namespace: str = ""
    is_stale: bool = False
    left_out_models: int = 0
    waiting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestAccount:
    """What one source reports of the requests of one model, counted since the daemon began.

    None or missing where it does not report it. `ends` are by reason, `rejections` by the role of
    the engines (None: not an engine) and reason. `waiting` are those that wait there now.
    """

    source: RequestSource
    model_name: str
    engine_namespace: str
    arrivals: float | None = None
    waiting: float | None = None
    ends: Mapping[str, float] = field(default_factory=dict)
    rejections: Mapping[tuple[Role | None, str], float] = field(default_factory=dict)
    time_to_first_token: Histogram | None = None
    duration: Histogram | None = None
    prompt_tokens: Histogram | None = None
    output_tokens: Histogram | None = None


@dataclass(frozen=True, slots=True)
class PartAccount:
    """One part of the waits of one model's requests, over the engines of this node."""

    part: Part
    model_name: str
    engine_namespace: str
    seconds: Histogram


@dataclass(frozen=True, slots=True)
class PromptTokenAccount:
    """Prompt tokens at the engines of one role and model, by the origin of their KV."""

    role: Role
    origin: str
    model_name: str
    engine_namespace: str
    tokens: float


@dataclass(frozen=True, slots=True)
class RequestAccounts:
    """All request accounts of the node, by model; the `left_out_models` are not included."""

    requests: tuple[RequestAccount, ...] = ()
    parts: tuple[PartAccount, ...] = ()
    prompt_tokens: tuple[PromptTokenAccount, ...] = ()
    left_out_models: int = 0
