"""How full an engine is, and the limits it is measured against (accounting A9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Sides(StrEnum):
    """How well a limit is known: steps were seen on both sides of it, or on one alone.

    `unreachable`: a target that not even a single request would meet.
    """

    BOTH = "both_sides"
    ONE = "one_side"
    UNREACHABLE = "unreachable"


class Bound(StrEnum):
    """What keeps an engine from doing more; `none` is an engine with room."""

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


@dataclass(frozen=True, slots=True)
class PrefillLimit:
    """Where reading prompts stops to gain from larger steps.

    `tokens_per_second` is the rate at the knee. `knee_tokens` is the size of a step there; None
    while no smaller step was seen.
    """

    tokens_per_second: float
    sides: Sides
    knee_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class DecodeLimit:
    """The batch (requests that each get a token in a step) that just meets the target.

    None where no batch does.
    """

    requests: float | None
    sides: Sides


@dataclass(frozen=True, slots=True)
class ModelSize:
    """How many parameters a model has in its layers and in its output, and what they weigh."""

    layer_parameters: int
    output_parameters: int
    bytes_a_parameter: int
    kv_bytes_a_token: int


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """One engine: how much of what it could serve it serves, and what holds it.

    `used_ratio` is 1 where the engine is full; it may be more. None until the limits that its
    role needs are learned, and while it is not ready. `flops_per_second` and `bytes_per_second`
    are what it computes and reads on all its GPUs, None where the size of its model is not known.
    """

    engine: str
    used_ratio: float | None = None
    prefill: PrefillLimit | None = None
    decode: DecodeLimit | None = None
    source: CapacitySource = CapacitySource.STEPS
    bound: Bound = Bound.UNKNOWN
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
