"""The snapshot behind the metrics page, with the states of workers, collectors and router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_exporter.model.accounts import BusyGpus, DeviceAccount, EngineAccount, TokenAccount
from disagg_exporter.model.devices import (
    Device,
    DeviceFailure,
    DeviceReading,
    ForeignWork,
    GpuShare,
)
from disagg_exporter.model.engines import EngineCapacity, EngineStatus
from disagg_exporter.model.enums import Phase
from disagg_exporter.model.serving import RequestAccounts


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One supervised child process; `start_timestamp_seconds` is None while it is not running.

    `next_start_timestamp_seconds` is the time of its next start, None where none is planned. A
    `paused` worker is observed and nothing else, on request; a `drained` one keeps running, and is
    sent no new requests. It is in its state since
    `since_timestamp_seconds`, None where unknown; a start or a drain is given up at
    `deadline_timestamp_seconds`. `cause` is why its process crashed last, `last_lines` the end of
    its log then, or its output while it starts.
    """

    worker: str
    state: str
    restarts: int
    start_timestamp_seconds: float | None
    paused: bool = False
    next_start_timestamp_seconds: float | None = None
    since_timestamp_seconds: float | None = None
    deadline_timestamp_seconds: float | None = None
    cause: str = ""
    last_lines: tuple[str, ...] = ()
    drained: bool = False


@dataclass(frozen=True, slots=True)
class ReassignStatus:
    """How often one worker changed role since the daemon started, and the last change.

    `outcomes` counts changes by outcome, `unproven` those that showed no effect. The seconds are of
    the last change that reached that stage, into `role`: until its last request ended, from there
    until it served again, and from there until its new phase used GPU time.
    """

    worker: str
    role: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    unproven: int = 0
    drain_seconds: float | None = None
    downtime_seconds: float | None = None
    effect_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DaemonCounts:
    """Requests to the daemon since it started.

    Control requests by verb and outcome, and refused ones by reason; refused HTTP requests by
    reason. `run_folder_restores` counts how often the run folder, or something in it, had to be
    recreated. `hook_events` are failures passed to the hook, by outcome; empty without a hook.
    `reassigned` has an entry for each worker that can change role.
    """

    control_requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    control_refusals: Mapping[str, int] = field(default_factory=dict)
    http_refusals: Mapping[str, int] = field(default_factory=dict)
    run_folder_restores: int = 0
    hook_events: Mapping[str, int] = field(default_factory=dict)
    reassigned: tuple[ReassignStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """How the last round of one collector went (`nvml`, `steps`, `engine:<name>` …).

    `unexpected_failures` counts its rounds that failed because of a bug.
    """

    collector: str
    success: bool
    duration_seconds: float
    last_success_timestamp_seconds: float | None
    unexpected_failures: int = 0


@dataclass(frozen=True, slots=True)
class RouterEngine:
    """An engine as a router knows it, by its URL, with our name for it and its phase."""

    url: str
    name: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class RouterCounts:
    """Requests that a router has answered, failed ones included; its errors by (phase, engine)."""

    requests: float = 0.0
    errors: Mapping[tuple[Phase, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterPage:
    """Values of a router's metrics page; engines are keyed by the URL that the router uses.

    `totals` count since the router started. `active` are the requests at engines of a phase, queued
    there or running; `pending` those whose decode engine is chosen and that wait for prefill, also
    by that engine in `pending_by_engine`. Empty or None where the page lacks them.
    """

    t_ns: int
    totals: RouterCounts = field(default_factory=RouterCounts)
    active: Mapping[Phase, float] = field(default_factory=dict)
    pending: float | None = None
    worker_health: Mapping[str, bool] = field(default_factory=dict)
    pending_by_engine: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """The router as the daemon sees it.

    `counts` count since the daemon first read the router's page, through all restarts of the
    router; None before. `page` is the last one, None while none can be read.
    """

    engines: tuple[RouterEngine, ...]
    counts: RouterCounts | None = None
    page: RouterPage | None = None


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Price of one GPU of the node for an hour; `currency` is its three-letter code."""

    currency: str
    per_hour: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the metrics page shows, made at one instant and replaced as a whole.

    `fresh_until_ns` is when the page must stop showing the readings and the accounts (they are then
    absent, not frozen); `wall_offset_seconds` converts monotonic to Unix time. `failures` are the
    devices that could not be read; they have no reading. `removed_accounts` are sums over removed
    devices; only the node's sums count them. `unexpected_failures` are sums by kind of collector,
    removed collectors included. `process` is the daemon's own resource use, by metric family.
    """

    taken_ns: int
    wall_offset_seconds: float
    fresh_until_ns: int
    devices: tuple[Device, ...] = ()
    readings: tuple[DeviceReading, ...] = ()
    failures: tuple[DeviceFailure, ...] = ()
    accounts: tuple[DeviceAccount, ...] = ()
    removed_accounts: tuple[DeviceAccount, ...] = ()
    engine_accounts: tuple[EngineAccount, ...] = ()
    tokens: tuple[TokenAccount, ...] = ()
    requests: RequestAccounts = field(default_factory=RequestAccounts)
    busy: tuple[BusyGpus, ...] = ()
    busy_window_seconds: float = 0.0
    engines: tuple[EngineStatus, ...] = ()
    capacities: tuple[EngineCapacity, ...] = ()
    gpu_shares: tuple[GpuShare, ...] = ()
    foreign_work: tuple[ForeignWork, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()
    worker_states: tuple[str, ...] = ()
    simulated: bool = False
    router: RouterStatus | None = None
    gpu_price: GpuPrice | None = None
    daemon_counts: DaemonCounts = field(default_factory=DaemonCounts)
    left_out_engines: int | None = None
    unexpected_failures: Mapping[str, int] = field(default_factory=dict)
    process: Mapping[str, float] = field(default_factory=dict)
