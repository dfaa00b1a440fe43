"""Enumerations whose values are label values."""

from __future__ import annotations

from enum import StrEnum


class LabelEnum(StrEnum):
    """A label value; as a key it is its text, which is hashed once."""

    __hash__ = str.__hash__


class Phase(LabelEnum):
    """The two phases of LLM inference."""

    PREFILL = "prefill"
    DECODE = "decode"


class Use(LabelEnum):
    """Where a second of a device went; the first two are the phases."""

    PREFILL = "prefill"
    DECODE = "decode"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    UNOBSERVED = "unobserved"


class Role(LabelEnum):
    """What an engine, and so its devices, is for."""

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
    """Where requests of an engine that does one phase only wait beside running and waiting.

    On prefill engines for the decode engine to answer (bootstrap) and for KV to leave (inflight);
    on decode engines for room to take KV in (prealloc) and for KV to arrive (transfer).
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
    """What a device is connected by."""

    PCIE = "pcie"
    NVLINK = "nvlink"


class Direction(LabelEnum):
    """Which way bytes go, seen from the device."""

    SENT = "sent"
    RECEIVED = "received"


class EngineState(LabelEnum):
    """Where an engine stands in its life, as its supervisor or discovery sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Method(LabelEnum):
    """How an engine's GPU-seconds were found, best first."""

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
        """Whether the engine reports every single step, rather than sums over a stretch of time."""
        return self in (Method.STEPS, Method.FPM)

    @property
    def by_page(self) -> bool:
        """Whether the engine's metrics page says how much it did in a stretch of time."""
        return self in (Method.ENGINE_TIMERS, Method.PAGE, Method.PAGE_CPU)


class Split(LabelEnum):
    """How steps that prefill and decode at once are divided (accounting A4)."""

    MODEL = "model"
    UNSURE = "unsure"
    TOKENS = "tokens"
    NONE = "none"


class ShareConfidence(LabelEnum):
    """How sure it is which phase had how much of an engine's GPU-seconds.

    `high`: single steps, those that do both phases divided by a model that has earned trust.
    `medium`: single steps while that is not so; sums, divided by a model that has earned trust or
    by the engine's own timers. `low`: sums that are divided by tokens or a role, that hold prompts
    in pieces, or that are the CPU time of processes. `none`: nothing is found.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


class LimitConfidence(StrEnum):
    """How well a limit is known: steps were seen on both sides of it, or on one alone.

    `unreachable`: a target that not even a single request would meet.
    """

    BOTH = "both_sides"
    ONE = "one_side"
    UNREACHABLE = "unreachable"


class Bottleneck(StrEnum):
    """Resource that limits an engine; `none` is an engine with room."""

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
