"""Values of the view, for the terminal, for JSON and for other displays.

Unknown values are None, never 0. Ratios are fractions of 1, times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import Use

PSEUDO_KIND = "CPU"
"""The kind of a pseudo-device."""
BUSY = (Use.PREFILL.value, Use.DECODE.value)


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Seconds of devices by use in a window; `ratios` sum to 1, and are empty without time."""

    seconds: Mapping[str, float]
    window_seconds: float

    @property
    def ratios(self) -> dict[str, float]:
        """Each use's share of all time, in the order of `Use`."""
        total = sum(self.seconds.values())
        if total <= 0:
            return {}
        return {use.value: self.seconds.get(use.value, 0.0) / total for use in Use}

    @property
    def occupancy_ratio(self) -> float | None:
        """Phase seconds / observed seconds; None if nothing was observed."""
        observed = sum(self.seconds.values()) - self.seconds.get(Use.UNOBSERVED.value, 0.0)
        busy = sum(self.seconds.get(use, 0.0) for use in BUSY)
        return busy / observed if observed > 0 else None


@dataclass(frozen=True, slots=True)
class HistorySlot:
    """Shares of observed time in the phases, within a few seconds."""

    prefill_ratio: float
    decode_ratio: float


History = tuple[HistorySlot | None, ...]
"""Slots of equal length, oldest first; None if unknown."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One device."""

    node: str
    gpu: str
    index: str
    gpu_name: str
    role: str
    engines: tuple[str, ...]
    time: GpuTime | None
    history: History
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_watts: float | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node with its devices combined."""

    node: str
    gpus: int
    engines: int
    time: GpuTime | None
    history: History


@dataclass(frozen=True, slots=True)
class LivePoolRow:
    """One pool; `used_ratio` is None until the capacity of half of its GPUs is known."""

    role: str
    gpus: float | None
    used_ratio: float | None


def model_words(model_name: str, namespace: str = "", cluster: str = "") -> str:
    """A model as it is shown, with what tells it from others of its name."""
    name = f"{namespace}/{model_name}" if namespace else model_name
    return f"{cluster} {name}" if cluster else name


@dataclass(frozen=True, slots=True)
class ModelRow:
    """The pools of one model and the verdicts on them."""

    cluster: str
    model_name: str
    namespace: str
    verdicts: tuple[str, ...]
    pools: tuple[LivePoolRow, ...]


@dataclass(frozen=True, slots=True)
class LiveEngineRow:
    """One engine; latencies are 95th percentiles within the window."""

    node: str
    engine: str
    role: str
    model_name: str
    kind: str
    version: str
    state: str
    state_seconds: float | None
    gpus: tuple[str, ...]
    running: float | None
    waiting: float | None
    kv_used_ratio: float | None
    first_token_p95_seconds: float | None
    between_tokens_p95_seconds: float | None
    tokens_per_second: float | None
    used_ratio: float | None
    bound: str
    method: str
    confidence: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One child process of a daemon; `state_seconds` counts from its start if that is all we know.

    `marks` are what was done to it by hand, and lasts: paused, drained.
    `deadline_seconds` is the time until its start or drain times out. `log` is the path of its log
    on its node, empty if unknown.
    """

    node: str
    worker: str
    state: str
    state_seconds: float | None
    restarts: int
    marks: tuple[str, ...]
    pid: int | None
    reason: str
    next_start_seconds: float | None
    deadline_seconds: float | None
    log: str


class TroubleSeverity(StrEnum):
    """Severity of a problem: broken, may become broken, or for information."""

    BROKEN = "broken"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One sentence and its severity."""

    severity: TroubleSeverity
    text: str


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A change between two readings."""

    at_seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class RolePlanRow:
    """The planner's GPUs of a role."""

    cluster: str
    model_name: str
    namespace: str
    role: str
    gpu_name: str
    current: float | None
    needed: float | None
    recommended: float | None
    horizon: str


@dataclass(frozen=True, slots=True)
class BottleneckRow:
    """What delays a model's first tokens, and what to do, as texts."""

    model_name: str
    whose: str
    cause: str
    action: str
    confidence_ratio: float | None
    ttft_cost_seconds: float | None


@dataclass(frozen=True, slots=True)
class Links:
    """Related pages and a note; empty where unknown."""

    page: str = ""
    metrics: str = ""
    prometheus: str = ""
    logs: str = ""
    note: str = ""
    grafana: str = ""


@dataclass(frozen=True, slots=True)
class TerminalView:
    """Everything that is shown; `behind_seconds` is how far accounts lag behind `at_seconds`.

    `rates_seconds` is the time that rates and latencies cover: a minute, less in a young view.
    `unanswered` says why there is no newer reading; empty if there is one.
    """

    title: str
    at_seconds: float
    version: str
    simulated: bool
    links: Links
    time: GpuTime | None
    behind_seconds: float | None
    history: History
    rates_seconds: float | None
    users_first_token_p95_seconds: float | None
    arrivals_per_second: float | None
    nodes: tuple[NodeRow, ...]
    gpus: tuple[GpuRow, ...]
    models: tuple[ModelRow, ...]
    engines: tuple[LiveEngineRow, ...]
    workers: tuple[WorkerRow, ...]
    troubles: tuple[Trouble, ...]
    events: tuple[NodeEvent, ...]
    plans: tuple[RolePlanRow, ...]
    moves: tuple[str, ...]
    bottlenecks: tuple[BottleneckRow, ...]
    unanswered: str = ""

    @property
    def device_noun(self) -> str:
        """The name of its devices: without GPUs, each engine has a pseudo-device."""
        kinds = {gpu.gpu_name == PSEUDO_KIND for gpu in self.gpus}
        if kinds == {True, False}:
            return "device"
        return "CPU engine" if True in kinds else "GPU"
