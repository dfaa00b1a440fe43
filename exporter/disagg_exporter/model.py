"""The nouns of the exporter: what a device, an engine, a step and a snapshot are.

Everything here is frozen and does nothing. Two clocks appear and are never mixed: `*_ns` is
CLOCK_MONOTONIC in integer nanoseconds (shared by all processes of a host, so engine and daemon
agree), `*_timestamp_seconds` is Unix time. Accounting is done in integer nanoseconds because
integers conserve time exactly; seconds appear only where something is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """The two phases of LLM inference."""

    PREFILL = "prefill"
    DECODE = "decode"


class Use(StrEnum):
    """Where a second of a device went; the first two are the phases."""

    PREFILL = "prefill"
    DECODE = "decode"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    UNOBSERVED = "unobserved"


class Role(StrEnum):
    """What an engine, and so its devices, is for."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    ENCODE = "encode"
    NONE = "none"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a second was idle, unattributed or unobserved (accounting A5, A6)."""

    NO_ENGINE = "no_engine"
    STARTING = "starting"
    DRAINING = "draining"
    NO_REQUEST = "no_request"
    KV_WAIT = "kv_wait"
    HOST_GAP = "host_gap"
    STRANGER = "stranger"
    NO_RECORD = "no_record"
    DUMMY = "dummy"
    NO_READING = "no_reading"
    NONE = ""


class Unit(StrEnum):
    """The part of a device whose activity is counted."""

    GRAPHICS = "graphics"
    SM = "sm"
    TENSOR = "tensor"
    DRAM = "dram"


class Throttle(StrEnum):
    """Why a device's clocks are lower than they could be; several may hold at once."""

    POWER_CAP = "power_cap"
    THERMAL = "thermal"
    HW_SLOWDOWN = "hw_slowdown"
    SYNC_BOOST = "sync_boost"
    OTHER = "other"


class EngineState(StrEnum):
    """Where an engine stands in its life, as its supervisor or discovery sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Method(StrEnum):
    """How an engine's GPU-seconds were found, best first."""

    STEPS = "steps"
    PAGE_CPU = "page_cpu"
    ROLE = "role"
    NONE = "none"


class Split(StrEnum):
    """How steps that prefill and decode at once are divided (accounting A4)."""

    MODEL = "model"
    TOKENS = "tokens"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, MIG instance or, on a host without GPUs, the pseudo-device of one engine.

    `gpu` is the UUID and the key everywhere; `device` is the node's own name for it
    (`nvidia0`, `cpu`, `sim0`). `weight` is 1, or the MIG compute slices / 7 (accounting A1).
    """

    gpu: str
    index: int
    gpu_name: str
    device: str
    pci_bus_id: str = ""
    weight: float = 1.0
    memory_total_bytes: int | None = None

    @property
    def is_pseudo(self) -> bool:
        """Whether it stands for an engine on a host without GPUs; nobody else can use it."""
        return self.device == "cpu"


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What one device told at one instant; None where it does not tell.

    `busy_ratio` (0 to 1) is its activity over the interval since the reading before: of its
    performance counters where it has them (`graphics_ratio`, beside those of its parts), else of
    its driver. `throttles` is empty where nothing holds the clocks back. ECC errors are those of
    the device's whole life.
    """

    gpu: str
    t_ns: int
    busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    sm_clock_hertz: float | None = None
    pids: tuple[int, ...] = ()
    graphics_ratio: float | None = None
    sm_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None
    throttles: tuple[Throttle, ...] | None = None
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceFailure:
    """A device that could not be read, and the driver's own words for it."""

    gpu: str
    why: str


@dataclass(frozen=True, slots=True)
class DeviceSweep:
    """One round over all devices: the readings, and the devices that failed."""

    t_ns: int
    readings: tuple[DeviceReading, ...] = ()
    failures: tuple[DeviceFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which devices serve which engine in which role, since when.

    Given to the accounting at spawn and at every change of state. `devices` are UUIDs. `pids`
    are the processes whose step records are believed. `since_ns` is when the change happened.
    """

    engine: str
    role: Role
    devices: tuple[str, ...]
    state: EngineState
    since_ns: int
    pids: tuple[int, ...] = ()
    model_name: str = ""
    engine_namespace: str = ""


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Running totals of one stream of steps since its incarnation began.

    `steps` and `elapsed_ns` are ordered by `StepKind`: context, generation, mixed, dummy.
    """

    steps: tuple[int, int, int, int] = (0, 0, 0, 0)
    elapsed_ns: tuple[int, int, int, int] = (0, 0, 0, 0)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    drops: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step, as its engine told it when the step had ended.

    `t_ns` is when the record was made (after the end of the step), `elapsed_ns` how long the
    engine core says it waited for the model. `context_*` and `generation_*` are what was
    scheduled; `computed_tokens`, `cached_tokens` and `external_tokens` say where the prompts
    that *ended* in this step came from (this engine, a cache here, another engine's KV).
    `running`, `waiting` and `deferred` describe the requests left after the step.
    """

    t_ns: int
    elapsed_ns: int
    sequence: int
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    encoder_inputs: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage_ratio: float = 0.0
    preemptions: int = 0
    dummy: bool = False
    totals: StepTotals = field(default_factory=StepTotals)


@dataclass(frozen=True, slots=True)
class StreamKey:
    """Who counts: totals and sequence numbers belong to one of these and to nobody else."""

    engine: str
    pid: int
    incarnation: int
    engine_index: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The finest drawer a device's second is put in; every exported sum is a sum of cells."""

    role: Role
    use: Use
    reason: Reason = Reason.NONE
    model_name: str = ""
    engine_namespace: str = ""


@dataclass(frozen=True, slots=True)
class ActivityCell:
    """Whose activity of one part of a device it was."""

    role: Role
    unit: Unit
    model_name: str = ""
    engine_namespace: str = ""


@dataclass(frozen=True, slots=True)
class DeviceAccount:
    """All committed time of one device, in weighted seconds (weight × wall).

    The values of `cells` sum to weight × (watermark − start), to 1e-6 (invariant a).
    `activity_seconds` (weighted, too) and `throttle_seconds` (wall) are booked as read and do not
    wait for the watermark; what the device never told has no entry. `energy_joules` is what was
    used up to the watermark, by cells without a reason; None where the device tells no energy.
    """

    device: Device
    role: Role
    start_ns: int
    watermark_ns: int
    cells: Mapping[Cell, float]
    activity_seconds: Mapping[ActivityCell, float] = field(default_factory=dict)
    throttle_seconds: Mapping[Throttle, float] = field(default_factory=dict)
    energy_joules: Mapping[Cell, float] | None = None


@dataclass(frozen=True, slots=True)
class EngineAccount:
    """What one engine has used (all its devices summed), and how well that is known.

    `told` is what it says of its own steps, before any of it is placed in time: step time there
    is that of one device. `residual_ratio` is how far a step's length is from what the cost model
    foresaw, `fitted_steps` how many it has learned from.
    """

    engine: str
    role: Role
    model_name: str
    engine_namespace: str
    watermark_ns: int
    method: Method
    gpu_seconds: Mapping[tuple[Role, Phase], float]
    phase_tokens: Mapping[tuple[Role, Phase], int]
    told: StepTotals = field(default_factory=StepTotals)
    cut_seconds: float = 0.0
    debt_seconds: float = 0.0
    lost_records: int = 0
    late_records: int = 0
    running: int | None = None
    waiting: int | None = None
    deferred: int | None = None
    kv_usage_ratio: float | None = None
    split: Split = Split.NONE
    residual_ratio: float | None = None
    fitted_steps: int = 0


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Tokens computed on this node in one phase by engines of one role and model, ever."""

    role: Role
    phase: Phase
    model_name: str
    engine_namespace: str
    tokens: int


@dataclass(frozen=True, slots=True)
class BusyGpus:
    """Devices' worth of work of one phase in the last `window_seconds`: provisional (A8)."""

    role: Role
    phase: Phase
    model_name: str
    engine_namespace: str
    gpu_name: str
    gpus: float


@dataclass(frozen=True, slots=True)
class EnginePage:
    """The few values of an engine's metrics page that we use; None where the page has none."""

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


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine as the daemon sees it beside its accounting: reachable, which kind, its page."""

    engine: str
    role: Role
    kind: str
    version: str
    model_name: str
    devices: tuple[str, ...]
    state: EngineState
    up: bool
    source: str
    confidence: str
    page: EnginePage | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One supervised child process; `start_timestamp_seconds` is None while it is not running."""

    worker: str
    state: str
    restarts: int
    start_timestamp_seconds: float | None


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """How the last round of one collector went (`nvml`, `steps`, `engine:<name>` …)."""

    collector: str
    success: bool
    duration_seconds: float
    last_success_timestamp_seconds: float | None


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the metrics page shows, made at one instant and swapped whole.

    `fresh_until_ns` is when the page must stop showing the readings and the accounts (they are
    then absent, not frozen); `wall_offset_seconds` turns monotonic into Unix time.
    """

    taken_ns: int
    wall_offset_seconds: float
    fresh_until_ns: int
    devices: tuple[Device, ...] = ()
    readings: tuple[DeviceReading, ...] = ()
    accounts: tuple[DeviceAccount, ...] = ()
    engine_accounts: tuple[EngineAccount, ...] = ()
    tokens: tuple[TokenAccount, ...] = ()
    busy: tuple[BusyGpus, ...] = ()
    busy_window_seconds: float = 0.0
    engines: tuple[EngineStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()
    worker_states: tuple[str, ...] = ()
    simulated: bool = False
    router: RouterStatus | None = None
