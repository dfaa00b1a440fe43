"""A reading of one node or several: the content of their metrics pages at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_exporter.model import Histogram


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device; `seconds` are committed seconds by use up to `watermark` (Unix time)."""

    node: str
    gpu: str
    index: str = ""
    gpu_name: str = ""
    role: str = ""
    engines: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    watermark: float | None = None
    start: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_watts: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the device: node and GPU."""
        return self.node, self.gpu


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine; unknown values are None. `tokens` counts all tokens computed so far, by phase."""

    node: str
    engine: str
    role: str = ""
    model_name: str = ""
    namespace: str = ""
    kind: str = ""
    version: str = ""
    up: bool | None = None
    registered: bool | None = None
    follows: str | None = None
    gpus: tuple[str, ...] = ()
    running: float | None = None
    waiting: float | None = None
    deferred: float | None = None
    kv_used_ratio: float | None = None
    used_ratio: float | None = None
    bound: str = ""
    method: str = ""
    confidence: str = ""
    tokens: Mapping[str, float] = field(default_factory=dict)
    first_token: Histogram | None = None
    between_tokens: Histogram | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the engine: node and name."""
        return self.node, self.engine


@dataclass(frozen=True, slots=True)
class WorkerReading:
    """One worker; times are Unix times, None where unknown.

    The fields after `next_start_timestamp` come only from its daemon's socket.
    """

    node: str
    worker: str
    state: str
    restarts: int = 0
    paused: bool = False
    drained: bool = False
    start_timestamp: float | None = None
    next_start_timestamp: float | None = None
    since_timestamp: float | None = None
    deadline_timestamp: float | None = None
    pid: int | None = None
    reason: str = ""
    log: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the worker: node and name."""
        return self.node, self.worker


@dataclass(frozen=True, slots=True)
class PoolKey:
    """All engines of one role that serve one model in one cluster and namespace."""

    cluster: str
    model_name: str
    namespace: str
    role: str


@dataclass(frozen=True, slots=True)
class RequestsOf:
    """Users' requests of a model as one source counts them on one node.

    A model's best source may change, and nodes start and end, so only counts of one may be
    subtracted.
    """

    node: str
    model: PoolKey
    source: str


@dataclass(frozen=True, slots=True)
class PoolReading:
    """Capacity of a pool in GPUs: used, and known."""

    key: PoolKey
    used_gpus: float
    known_gpus: float


@dataclass(frozen=True, slots=True)
class FiringAlert:
    """One firing alert."""

    name: str
    severity: str
    about: str


@dataclass(frozen=True, slots=True)
class PlanReading:
    """The planner's GPUs of a role; None where it reports none."""

    key: PoolKey
    gpu_name: str
    current: float | None = None
    needed: float | None = None
    recommended: float | None = None
    horizon: str = ""


@dataclass(frozen=True, slots=True)
class AdvisedMove:
    """A worker that should change its role now; node and worker are empty if none is named."""

    model_name: str
    node: str
    worker: str
    role: str
    to_role: str
    cluster: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class BottleneckReading:
    """One verdict of the planner's diagnosis: what delays first tokens, why, and what to do."""

    model_name: str
    node: str
    engine: str
    role: str
    cause: str
    action: str = ""
    confidence_ratio: float | None = None
    ttft_cost_seconds: float | None = None
    cluster: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class LiveReading:
    """Everything read at one moment; `failed_collectors` are (node, collector).

    `missed_nodes` were present minutes ago and are not any more. `pool_gpus` are the GPUs of each
    pool's engines: a MIG slice is its share of one, a shared device is divided. `verdicts` come
    from the node's daemon or a Prometheus' recording rule, by cluster, model and namespace.
    """

    at_seconds: float
    version: str = ""
    simulated: bool = False
    nodes: tuple[str, ...] = ()
    missed_nodes: tuple[str, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    engines: tuple[EngineReading, ...] = ()
    workers: tuple[WorkerReading, ...] = ()
    pools: tuple[PoolReading, ...] = ()
    pool_gpus: Mapping[PoolKey, float] = field(default_factory=dict)
    verdicts: Mapping[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    failed_collectors: tuple[tuple[str, str], ...] = ()
    alerts: tuple[FiringAlert, ...] = ()
    plans: tuple[PlanReading, ...] = ()
    advised: tuple[AdvisedMove, ...] = ()
    bottlenecks: tuple[BottleneckReading, ...] = ()
    users_first_token: Mapping[RequestsOf, Histogram] = field(default_factory=dict)
    arrivals: Mapping[RequestsOf, float] = field(default_factory=dict)
