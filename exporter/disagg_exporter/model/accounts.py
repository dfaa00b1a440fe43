"""Accounts of devices and engines: seconds, tokens, energy, and the gauges shown beside them."""

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
"""Stands for all models whose names were forgotten; no engine's model can have this name."""

SECOND_NS = 1_000_000_000

SLICE_NS_PER_GPU_SECOND = GPU_SLICES * SECOND_NS
"""Slice-nanoseconds (nanoseconds of one compute slice) in a second of a whole GPU."""

MICROJOULES_PER_JOULE = 1_000_000


class Cell(NamedTuple):
    """Key of the finest division of a device's seconds; every exported sum is a sum of cells."""

    role: Role
    use: Use
    reason: Reason = Reason.NONE
    model_name: str = ""
    engine_namespace: str = ""


class ActivityCell(NamedTuple):
    """Key of the activity of one part of a device: the role and model that caused it."""

    role: Role
    unit: Unit
    model_name: str = ""
    engine_namespace: str = ""


@dataclass(frozen=True, slots=True)
class DeviceAccount:
    """All committed time of one device, in slice-nanoseconds (compute slices × wall time).

    Integers, so that the sum does not depend on the order of addition: with floats it does in the
    last bit, and a counter must never decrease.

    The values of `slice_ns` sum to slices × (watermark − start) (invariant a). `active_slice_ns`,
    `read_slice_ns` (the time over which activity was read, by the same cells) and `throttled_ns`
    (wall time) are counted as they are read, without waiting for the watermark; what the device
    never reported has no entry. `microjoules` is the energy used up to the
    watermark, by cells without a reason; None where the device reports no energy.
    `metered_slice_ns` is the time in which it was used, by the same cells. `watts` is the power per
    use by which energy is divided; empty while it is divided by time.
    """

    device: Device
    role: Role
    start_ns: int
    watermark_ns: int
    slice_ns: Mapping[Cell, int]
    active_slice_ns: Mapping[ActivityCell, int] = field(default_factory=dict)
    read_slice_ns: Mapping[ActivityCell, int] = field(default_factory=dict)
    throttled_ns: Mapping[Throttle, int] = field(default_factory=dict)
    microjoules: Mapping[Cell, int] | None = None
    metered_slice_ns: Mapping[Cell, int] = field(default_factory=dict)
    watts: Mapping[Use, float] = field(default_factory=dict)

    @property
    def cells(self) -> dict[Cell, float]:
        """Committed time in weighted seconds (weight × wall time)."""
        return {cell: ns / SLICE_NS_PER_GPU_SECOND for cell, ns in self.slice_ns.items()}


class ReferenceStep(NamedTuple):
    """Cost of a step of a known size: the tokens and requests of `point`, recent context lengths.

    The true value lies within `error_seconds` of `seconds` nine times in ten.
    """

    point: str
    seconds: float
    error_seconds: float


class Interference(NamedTuple):
    """How many seconds mixed steps took longer, or shorter, than their parts would have separately.

    All seconds are per device and never decrease. Loss minus gain, over the `step_seconds` for
    which they were known, is within `error_ratio` of the true value nine times in ten.
    """

    loss_seconds: float
    gain_seconds: float
    step_seconds: float
    error_ratio: float


class ExpectedSteps(NamedTuple):
    """Expected and actual duration of the same steps.

    Nanoseconds of one device by kind of step: context, generation, mixed.
    """

    expected_ns: tuple[int, ...] = (0, 0, 0)
    taken_ns: tuple[int, ...] = (0, 0, 0)

    def plus(self, others: ExpectedSteps) -> ExpectedSteps:
        """Return the sums of these steps and others."""
        expected_ns = tuple(map(add, self.expected_ns, others.expected_ns))
        return ExpectedSteps(expected_ns, tuple(map(add, self.taken_ns, others.taken_ns)))


@dataclass(frozen=True, slots=True)
class EngineAccount:
    """What one engine has used (all its devices summed), and how reliable that is.

    `reported` is what the engine reports of its own steps, before any of it is placed in time: its
    step time is that of one device. `residual_ratio` is how far step durations are from the cost
    model's predictions, `fitted_steps` how many steps the model has learned from,
    `share_error_ratio` how far prefill's share of the engine's step time may be off. `cut_prompts`:
    the share is known from sums that contain chunked prompts. `shares_devices`: another engine is
    on one of its devices, too. `expected_steps` are the steps that were predicted well enough.
    `interference` is None until it is known. `unreported_step_seconds` is how long the engine's
    time has waited for a step whose record has not arrived. `watermark_ns` is None while no source
    reports it: nothing is committed then.
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
    shares_devices: bool = False

    @property
    def confidence(self) -> ShareConfidence:
        """Confidence in the phases' shares of its GPU-seconds.

        On a device with another engine a page does not show whose activity it was.
        """
        estimates_well = not self.cut_prompts and not self.shares_devices
        divides = self.reported.mixed_steps > 0
        match self.method:
            case Method.NONE:
                return ShareConfidence.NONE
            case Method.STEPS | Method.FPM if self.split is Split.MODEL or not divides:
                return ShareConfidence.HIGH
            case Method.STEPS | Method.FPM | Method.ENGINE_TIMERS:
                return ShareConfidence.MEDIUM
            case Method.PAGE if self.split is Split.MODEL and estimates_well:
                return ShareConfidence.MEDIUM
        return ShareConfidence.LOW


class TokenAccount(NamedTuple):
    """Tokens computed on this node in one phase by engines of one role and model, ever.

    `slice_ns` is the device time of the same engines in that phase, in slice-nanoseconds. Engines
    that report no tokens are left out of both.
    """

    role: Role
    phase: Phase
    model_name: str
    engine_namespace: str
    tokens: int
    slice_ns: int = 0


@dataclass(frozen=True, slots=True)
class BusyGpus:
    """Devices' worth of work of one phase in the fast gauges' window: provisional (A8)."""

    role: Role
    phase: Phase
    model_name: str
    engine_namespace: str
    gpu_name: str
    gpus: float
