"""How engines, workers, collectors and the router stand, as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_exporter.model.capacity import ModelSize
from disagg_exporter.model.serving import ServingCounts
from disagg_exporter.model.words import EngineState, Phase, Role


@dataclass(frozen=True, slots=True)
class EnginePage:
    """The few values of an engine's metrics page that we use; None where the page has none.

    `prefill_seconds_total` and `decode_seconds_total` are the engine's own timers: how long each
    of its devices ran such steps. SGLang's count mixed steps as prefill. `steps_total` are the
    steps of all ranks. `kv_cache_tokens` is how
    much its cache can hold, `asleep` whether it has given its memory back for a while. `serving`
    counts since the engine started. `ranks` are the data-parallel ranks that are in the sums.
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
    serving: ServingCounts = field(default_factory=ServingCounts)
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class DynamoWorker:
    """An engine as NVIDIA Dynamo knows it: its worker's id in hex, and whether it is registered.

    `registered` is None where nobody can tell. A worker that has lost its registration goes on
    answering, and gets no requests.
    """

    worker: str
    registered: bool | None = None


@dataclass(frozen=True, slots=True)
class TlsStatus:
    """How an engine that speaks TLS was known at the last look at its page.

    `verified` is `ca`, `pinned` or `insecure`; empty if it was not asked by TLS. `fault` is why no
    page came, in a word of `TlsFault`; empty if TLS is not why.
    """

    verified: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine as the daemon sees it beside its accounting: reachable, which kind, its page.

    `serving` counts since the daemon first saw the engine's page, through all its restarts; None
    before.
    `pid` is the process above all of its own, None where none can be seen.
    `role_changes` is how often it went from one known role to another; None where a person said it.
    `follows` is set where it is one node's part of an engine that is led elsewhere: the address at
    which they meet, empty if nobody told it. It answers nobody, and `up` is that it is there; None
    where it should answer and nobody could ask.
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


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One supervised child process; `start_timestamp_seconds` is None while it is not running.

    `next_start_timestamp_seconds` is when it is started next, None where that is not planned.
    One that is `paused` is observed and nothing else, because somebody asked for that.
    """

    worker: str
    state: str
    restarts: int
    start_timestamp_seconds: float | None
    paused: bool = False
    next_start_timestamp_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DaemonCounts:
    """What the daemon was asked for since it started.

    By hand by verb and outcome; over HTTP what it turned away, by reason. `run_folder_restores`
    counts how often its run folder, or something in it, had to be made anew.
    `hook_events` are the failures that the hook was told of, by outcome; empty without one.
    """

    control_requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    http_refusals: Mapping[str, int] = field(default_factory=dict)
    run_folder_restores: int = 0
    hook_events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """How the last round of one collector went (`nvml`, `steps`, `engine:<name>` …).

    `unexpected_failures` counts its rounds that failed of a defect of ours.
    """

    collector: str
    success: bool
    duration_seconds: float
    last_success_timestamp_seconds: float | None
    unexpected_failures: int = 0


@dataclass(frozen=True, slots=True)
class RouterEngine:
    """An engine as a router knows it, by its URL, and as we call it; `phase` is its part."""

    url: str
    name: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class RouterCounts:
    """Requests that a router has answered, failed ones included, and its errors by engine."""

    requests: float = 0.0
    prefill_errors: Mapping[str, float] = field(default_factory=dict)
    decode_errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterPage:
    """What a router's metrics page says; engines go by the URL under which the router knows them.

    `totals` count since the router started. `active` are the requests at engines of a phase, queued
    there or running; `pending` those whose decode engine is chosen and waits for their prefill;
    empty or None where the page does not tell.
    """

    t_ns: int
    totals: RouterCounts = field(default_factory=RouterCounts)
    active: Mapping[Phase, float] = field(default_factory=dict)
    pending: float | None = None
    worker_health: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """The router as the daemon sees it.

    `counts` count since the daemon first saw the router's page, through all restarts of the
    router; None before. `page` is its last, None while it has none that can be read.
    """

    engines: tuple[RouterEngine, ...]
    counts: RouterCounts | None = None
    page: RouterPage | None = None
