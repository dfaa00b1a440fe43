"""What is known of an engine: its page, its limits, its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.model.enums import (
    Bottleneck,
    CapacitySource,
    EngineState,
    KvQueue,
    LimitConfidence,
    Role,
)
from disagg_exporter.model.serving import ServingCounts


@dataclass(frozen=True, slots=True)
class PrefillLimit:
    """The step size beyond which prefill throughput gains little.

    `tokens_per_second` is the rate at the knee. `knee_tokens` is the step size there; None while no
    smaller step was observed.
    """

    tokens_per_second: float
    confidence: LimitConfidence
    knee_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class DecodeLimit:
    """The batch (requests that each get a token in a step) that just meets the target.

    None where no batch does, or where the batch is only known to be smaller than `below`.
    """

    requests: float | None
    confidence: LimitConfidence
    below: float | None = None


class StepLimits(NamedTuple):
    """Most that an engine schedules into one step, per rank; None where not known."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None


class CurveSample(NamedTuple):
    """One point of a learned curve: a size (tokens or requests of a step), and its value."""

    size: int
    value: float


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Number of parameters in a model's layers and its output, and their sizes in bytes."""

    layer_parameters: int
    output_parameters: int
    bytes_per_parameter: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """One engine: how much of its capacity is used, and its bottleneck.

    `used_ratio` is 1 where the engine is full; it may be more. It is None until the limits that its
    role needs are learned, and while the engine is not ready. `flops_per_second` and
    `bytes_per_second` are what it computes and reads on all its GPUs; None where the size of its
    model is not known. `prefill_curve` (tokens per second by the tokens of a step) and
    `decode_curve` (seconds by requests) are what the limits were read off. `configured` is what it
    was started with.
    """

    engine: str
    used_ratio: float | None = None
    prefill: PrefillLimit | None = None
    decode: DecodeLimit | None = None
    source: CapacitySource = CapacitySource.STEPS
    bottleneck: Bottleneck = Bottleneck.UNKNOWN
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    prefill_curve: tuple[CurveSample, ...] = ()
    decode_curve: tuple[CurveSample, ...] = ()
    configured: StepLimits = field(default_factory=StepLimits)


@dataclass(frozen=True, slots=True)
class EnginePage:
    """The values used from an engine's metrics page; None where the page has none.

    `prefill_seconds_total` and `decode_seconds_total` are the engine's own timers: how long each of
    its devices ran such steps. SGLang counts mixed steps as prefill. `steps_total` are the steps of
    all ranks. `kv_cache_tokens` is the capacity of its cache, `asleep` whether it has released its
    memory for a while. `kv_queues` are parts of `waiting` and `deferred`. `serving` counts since
    the engine started. `ranks` is the number of data-parallel ranks in the sums.
    """

    kind: str
    t_ns: int
    model_name: str | None = None
    running: float | None = None
    waiting: float | None = None
    deferred: float | None = None
    kv_usage_ratio: float | None = None
    computed_tokens_total: float | None = None
    external_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prefill_seconds_total: float | None = None
    decode_seconds_total: float | None = None
    steps_total: float | None = None
    kv_cache_tokens: float | None = None
    asleep: bool | None = None
    kv_queues: Mapping[KvQueue, float] = field(default_factory=dict)
    serving: ServingCounts = field(default_factory=ServingCounts)
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class DynamoWorker:
    """An engine as NVIDIA Dynamo knows it: its worker id in hex, and whether it is registered.

    `registered` is None where unknown. A worker that has lost its registration still answers, and
    gets no requests.
    """

    worker: str
    registered: bool | None = None


@dataclass(frozen=True, slots=True)
class TlsStatus:
    """How an engine that speaks TLS was verified at the last scrape of its page.

    `verified` is `ca`, `pinned` or `insecure`; empty if it was not scraped over TLS. `fault` is why
    no page arrived, a value of `TlsFault`; empty if TLS is not the reason.
    """

    verified: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine as the daemon sees it, beside its accounting: reachability, kind, page.

    `serving` counts since the daemon first read the engine's page, through all its restarts; None
    before. `pid` is the topmost of its own processes, None where none is visible. `role_changes` is
    how often it changed from one known role to another; None where a person set the role.
    `namespace` is the Kubernetes namespace of its pod. `start_timestamp_seconds` is the Unix time
    at which its process began, `limits` are those on its command line. `follows` is set where it is
    one node's part of an engine that is led elsewhere: the rendezvous address, empty if unknown.
    Such a part answers no requests, and `up` means that it exists; `up` is None where it should
    answer and no probe could be made.
    """

    engine: str
    role: Role
    kind: str
    version: str
    model_name: str
    devices: tuple[str, ...]
    state: EngineState
    up: bool | None
    source: str
    confidence: str
    page: EnginePage | None = None
    pod: str = ""
    dynamo: DynamoWorker | None = None
    serving: ServingCounts | None = None
    pid: int | None = None
    model_size: ModelSize | None = None
    follows: str | None = None
    tls: TlsStatus | None = None
    role_changes: int | None = None
    namespace: str = ""
    start_timestamp_seconds: float | None = None
    limits: StepLimits = field(default_factory=StepLimits)
