"""What can go wrong, and when. Times are seconds after the start of the simulation."""

from __future__ import annotations

from dataclasses import dataclass

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Crash:
    """An engine's process dies; the next one starts so much later, None: never."""

    at_seconds: float
    engine: str
    restart_after_seconds: float | None = 1.0


@dataclass(frozen=True, slots=True)
class Stuck:
    """An engine hangs: no step ends, while its server still answers and beats.

    Its GPUs look busy if it hung inside a step, as they do when a collective waits for ever.
    """

    at_seconds: float
    for_seconds: float
    engine: str


@dataclass(frozen=True, slots=True)
class Slow:
    """An engine takes `factor` times as long for each step."""

    at_seconds: float
    for_seconds: float
    engine: str
    factor: float


@dataclass(frozen=True, slots=True)
class LostRecords:
    """A part of an engine's step records does not get through."""

    at_seconds: float
    for_seconds: float
    engine: str
    ratio: float


@dataclass(frozen=True, slots=True)
class LateRecords:
    """All that an engine tells arrives late."""

    at_seconds: float
    for_seconds: float
    engine: str
    late_seconds: float


@dataclass(frozen=True, slots=True)
class SlowTransfer:
    """All KV transfers take `factor` times as long."""

    at_seconds: float
    for_seconds: float
    factor: float


@dataclass(frozen=True, slots=True)
class FailingTransfer:
    """A part of all KV transfers fails; the decode engine computes those prompts itself."""

    at_seconds: float
    for_seconds: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Throttled:
    """A GPU runs at `clock_ratio` of its clock: too hot, or short of power."""

    at_seconds: float
    for_seconds: float
    gpu: str
    clock_ratio: float


Fault = (
    Crash | Stuck | Slow | LostRecords | LateRecords | SlowTransfer | FailingTransfer | Throttled
)
