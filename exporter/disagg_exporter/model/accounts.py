"""What the books say: seconds, tokens, energy, and the fast gauges beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.model.devices import Device
from disagg_exporter.model.steps import StepTotals
from disagg_exporter.model.words import Method, Phase, Reason, Role, Split, Throttle, Unit, Use

FORGOTTEN_MODEL = "\0"
"""Stands for models whose names were forgotten; no engine's model can be called so."""


class Cell(NamedTuple):
    """The finest drawer a device's second is put in; every exported sum is a sum of cells."""

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
    foresaw, `fitted_steps` how many it has learned from. `watermark_ns` is None while no source
    tells of it: then nothing is to be committed.
    """

    engine: str
    role: Role
    model_name: str
    engine_namespace: str
    watermark_ns: int | None
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
