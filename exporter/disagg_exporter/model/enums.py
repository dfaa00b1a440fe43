"""Enumerations whose values are label values."""

from __future__ import annotations

from enum import StrEnum


class LabelEnum(StrEnum):
    """A label value; as a key it hashes as its text, whose hash is cached."""

    __hash__ = str.__hash__


class Phase(LabelEnum):
    """The two phases of LLM inference."""

    PREFILL = "prefill"
    DECODE = "decode"


class Use(LabelEnum):
    """What a second of a device was used for; the first two are the phases."""

    PREFILL = "prefill"
    DECODE = "decode"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    UNOBSERVED = "unobserved"


class Role(LabelEnum):
    """Purpose of an engine, and so of its devices."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    ENCODE = "encode"
    NONE = "none"
    UNKNOWN = "unknown"


class Reason(LabelEnum):
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
    NO_DAEMON = "no_daemon"
    NONE = ""


class Unit(LabelEnum):
    """The part of a device whose activity is counted."""

    GRAPHICS = "graphics"
    SM = "sm"
    TENSOR = "tensor"
    DRAM = "dram"


class KvQueue(LabelEnum):
    """Queues of single-phase engines, beside running and waiting.

    On prefill engines: for the decode engine to answer (bootstrap) and for KV to leave (inflight);
    on decode engines: for room to receive KV (prealloc) and for KV to arrive (transfer).
    """

    BOOTSTRAP = "bootstrap"
    INFLIGHT = "inflight"
    PREALLOC = "prealloc"
    TRANSFER = "transfer"


class Throttle(LabelEnum):
    """Why a device's clocks are lower than they could be; several may hold at once."""

    POWER_CAP = "power_cap"
    THERMAL = "thermal"
    HW_SLOWDOWN = "hw_slowdown"
    SYNC_BOOST = "sync_boost"
    OTHER = "other"


class LinkKind(LabelEnum):
    """Kind of link that a device is connected by."""

    PCIE = "pcie"
    NVLINK = "nvlink"


class Direction(LabelEnum):
    """Direction of bytes, relative to the device."""

    SENT = "sent"
    RECEIVED = "received"


class EngineState(LabelEnum):
    """Lifecycle state of an engine, as its supervisor or discovery sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Method(LabelEnum):
    """How an engine's GPU-seconds were determined, best first."""

    STEPS = "steps"
    FPM = "fpm"
    ENGINE_TIMERS = "engine_timers"
    PAGE = "page"
    PAGE_CPU = "page_cpu"
    FOLLOWER = "follower"
    ROLE = "role"
    NONE = "none"

    @property
    def by_step(self) -> bool:
        """Whether the engine reports each step, rather than sums over a stretch of time."""
        return self in (Method.STEPS, Method.FPM)

    @property
    def by_page(self) -> bool:
        """Whether its work in a stretch of time is known from its metrics page."""
        return self in (Method.ENGINE_TIMERS, Method.PAGE, Method.PAGE_CPU)


class Split(LabelEnum):
    """How steps that both prefill and decode are divided (accounting A4)."""

    MODEL = "model"
    UNSURE = "unsure"
    TOKENS = "tokens"
    NONE = "none"


class ShareConfidence(LabelEnum):
    """Confidence in the phases' shares of an engine's GPU-seconds.

    `high`: single steps, those that do both phases divided by a model that has earned trust.
    `medium`: single steps while that is not so; sums, divided by a model that has earned trust or
    by the engine's own timers. `low`: sums that are divided by tokens or a role, that hold chunked
    prompts, or that are the CPU time of processes. `none`: nothing is known.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


class LimitConfidence(StrEnum):
    """How well a limit is known: steps were observed on both sides of it, or on one only.

    `unreachable`: a target that not even a single request would meet.
    """

    BOTH = "both_sides"
    ONE = "one_side"
    UNREACHABLE = "unreachable"


class Bottleneck(StrEnum):
    """Resource that limits an engine; `none` means that it has room."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    KV = "kv"
    HOST = "host"
    NONE = "none"
    UNKNOWN = "unknown"


class CapacitySource(StrEnum):
    """What the limits were learned from, best first."""

    STEPS = "steps"
    PAGE = "page"
