"""Accounts of devices and engines: seconds, tokens, energy, and the fast gauges beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from disagg_exporter.model.devices import GPU_SLICES, Device
from disagg_exporter.model.enums import (
    Method,
    Phase,
    Reason,
    Role,
    ShareConfidence,
    Split,
    Throttle,
    Unit,
    Use,
)
from disagg_exporter.model.steps import StepTotals

FORGOTTEN_MODEL = "\0"
"""Stands for models whose names were forgotten; no engine's model can be called so."""

SLICE_NS_PER_GPU_SECOND = GPU_SLICES * 1_000_000_000
"""Slice-nanoseconds (nanoseconds of one compute slice) in a second of a whole GPU."""

MICROJOULES_PER_JOULE = 1_000_000


class Cell(NamedTuple):
    """The finest division of a device's seconds; every exported sum is a sum of cells."""

    role: Role
    use: Use
    reason: Reason = Reason.NONE
    model_name: str = ""
    engine_namespace: str = ""


class ActivityCell(NamedTuple):
    """Whose activity of one part of a device it was."""

    role: Role
    unit: Unit
    model_name: str = ""
    engine_namespace: str = ""


@dataclass(frozen=True, slots=True)
class DeviceAccount:
    """All committed time of one device, in slice-nanoseconds (compute slices × wall).

    Whole numbers, so that however accounts are added up the sum is the same: a sum of floats
    depends on the order by its last bit, and a counter must not fall by that.

    The values of `slice_ns` sum to slices × (watermark − start) (invariant a). `active_slice_ns`
    and `throttled_ns` (of the wall) are counted as read and do not wait for the watermark; what the
    device never reported has no entry. `microjoules` is what was used up to the watermark, by cells
    without a reason; None where the device reports no energy. `metered_slice_ns` is the time in
    which it was used, by the same cells. `watts` is the power by use that it is divided by; empty
    while it is divided by time.
    """

    device: Device
    role: Role
    start_ns: int
    watermark_ns: int
    slice_ns: Mapping[Cell, int]
    active_slice_ns: Mapping[ActivityCell, int] = field(default_factory=dict)
    throttled_ns: Mapping[Throttle, int] = field(default_factory=dict)
    microjoules: Mapping[Cell, int] | None = None
    metered_slice_ns: Mapping[Cell, int] = field(default_factory=dict)
    watts: Mapping[Use, float] = field(default_factory=dict)

    @property
    def cells(self) -> dict[Cell, float]:
        """The committed time in weighted seconds (weight × wall)."""
        return {cell: ns / SLICE_NS_PER_GPU_SECOND for cell, ns in self.slice_ns.items()}


class ReferenceStep(NamedTuple):
    """What a step of a known size costs: the tokens and requests of `point`, contexts as lately.

    The truth lies within `error_seconds` of `seconds` nine times in ten.
    """

    point: str
    seconds: float
    error_seconds: float


class Interference(NamedTuple):
    """By how many seconds mixed steps took longer, or shorter, than their parts apart.

    All seconds are of one device and never fall. Loss less gain, over the `step_seconds` of which
    they were known, is within `error_ratio` of the truth nine times in ten.
    """

    loss_seconds: float
    gain_seconds: float
    step_seconds: float
    error_ratio: float


class ExpectedSteps(NamedTuple):
    """What some steps were expected to take, and what the same steps took.

    Nanoseconds of one device by kind of step: context, generation, mixed.
    """

    expected_ns: tuple[int, ...] = (0, 0, 0)
    taken_ns: tuple[int, ...] = (0, 0, 0)

    def plus(self, others: ExpectedSteps) -> ExpectedSteps:
        """Return these steps and others together."""
        expected_ns = tuple(map(add, self.expected_ns, others.expected_ns))
        return ExpectedSteps(expected_ns, tuple(map(add, self.taken_ns, others.taken_ns)))


@dataclass(frozen=True, slots=True)
class EngineAccount:
    """What one engine has used (all its devices summed), and how well that is known.

    `reported` is what it says of its own steps, before any of it is placed in time: step time there
    is that of one device. `residual_ratio` is how far a step's length is from what the cost model
    foresaw, `fitted_steps` how many it has learned from, `share_error_ratio` how far prefill's
    share of the engine's step time may be off, `cut_prompts` that it is known by sums which hold
    prompts in pieces. `expected_steps` are those of its steps that were foreseen well enough.
    `interference` is None until it is known. `unreported_step_seconds` is how
    long its time has waited for a step of which no record tells yet. `watermark_ns` is None while
    no source reports it: then nothing is to be committed.
    """

    engine: str
    role: Role
    model_name: str
    engine_namespace: str
    watermark_ns: int | None
    method: Method
    gpu_seconds: Mapping[tuple[Role, Phase], float]
    phase_tokens: Mapping[tuple[Role, Phase], int]
    reported: StepTotals = field(default_factory=StepTotals)
    cut_seconds: float = 0.0
    carry_over_seconds: float = 0.0
    lost_records: int = 0
    late_records: int = 0
    running: int | None = None
    waiting: int | None = None
    deferred: int | None = None
    kv_usage_ratio: float | None = None
    split: Split = Split.NONE
    residual_ratio: float | None = None
    fitted_steps: int = 0
    share_error_ratio: float | None = None
    expected_steps: ExpectedSteps = field(default_factory=ExpectedSteps)
    interference: Interference | None = None
    reference_steps: tuple[ReferenceStep, ...] = ()
    unreported_step_seconds: float | None = None
    cut_prompts: bool = False

    @property
    def confidence(self) -> ShareConfidence:
        """How sure the phases' shares of its GPU-seconds are."""
        divides = self.reported.mixed_steps > 0
        match self.method:
            case Method.NONE:
                return ShareConfidence.NONE
            case Method.STEPS | Method.FPM if self.split is Split.MODEL or not divides:
                return ShareConfidence.HIGH
            case Method.STEPS | Method.FPM | Method.ENGINE_TIMERS:
                return ShareConfidence.MEDIUM
            case Method.PAGE if self.split is Split.MODEL and not self.cut_prompts:
                return ShareConfidence.MEDIUM
        return ShareConfidence.LOW


class TokenAccount(NamedTuple):
    """Tokens computed on this node in one phase by engines of one role and model, ever.

    `slice_ns` is the device time of the same engines in that phase, in slice-nanoseconds: engines
    that report no tokens are in neither.
    """

    role: Role
    phase: Phase
    model_name: str
    engine_namespace: str
    tokens: int
    slice_ns: int = 0


@dataclass(frozen=True, slots=True)
class BusyGpus:
    """Devices' worth of work of one phase in the last `window_seconds`: provisional (A8)."""

    role: Role
    phase: Phase
    model_name: str
    engine_namespace: str
    gpu_name: str
    gpus: float
