"""What a plan says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import Role


class PlanActionKind(StrEnum):
    """What is to be done with workers."""

    ADD = "add"
    REMOVE = "remove"
    MOVE = "move"


@dataclass(frozen=True, slots=True)
class PlanAction:
    """To be done at `at_seconds`: `engines` of a role on `gpus` GPUs each are added or removed.

    A move gives engines of `role` the role `to_role`, on the GPUs they have.
    """

    kind: PlanActionKind
    model_name: str
    engine_namespace: str
    role: Role
    gpu_name: str
    gpus: int
    engines: int
    at_seconds: float
    to_role: Role | None = None


@dataclass(frozen=True, slots=True)
class PlanRow:
    """GPUs of one role at one horizon.

    `needed` hold the targets with the probability `quantile`; `recommended` are what the plan
    would have there. `shortfall` is what the recommended lack of the needed, whatever bound or
    lead time is the reason; `missing` what the current ones lack.
    """

    role: Role
    gpu_name: str
    horizon_seconds: float
    quantile: float
    current: int
    needed: int
    recommended: int
    shortfall: int

    @property
    def missing(self) -> int:
        """How many GPUs are too few if nothing is done."""
        return max(0, self.needed - self.current)


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role of one model on GPUs of one name: what to order now, and all horizons.

    `engines_now` is what the role should be set to at once: what is added now serves a lead time
    later. `reasons` say why, in plain words, and are never empty.
    """

    role: Role
    gpu_name: str
    gpus: int
    engines: int
    engines_now: int
    rows: tuple[PlanRow, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """What some numbers of engines bring over the horizon, in the mean of all futures.

    `minutes_over_target` have too few engines of some role; `idle_gpu_hours` are held and not
    needed. `money` is for all GPUs held, where prices are known.
    """

    minutes_over_target: float
    idle_gpu_hours: float
    gpu_hours: float
    money: float | None


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model's roles, what doing nothing costs beside doing this, and how sure it is."""

    model_name: str
    engine_namespace: str
    roles: tuple[RolePlan, ...]
    drivers: tuple[str, ...]
    error_so_far: str
    doing_nothing: ExpectedCost
    following: ExpectedCost


@dataclass(frozen=True, slots=True)
class UndecidedPlan:
    """No plan for a model, and why; its GPUs are left to it."""

    model_name: str
    engine_namespace: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The plan of a cluster at `now_seconds`: its models in the order in which they were given.

    `bounds` say which bounds bind, from when on and what they leave short.
    """

    now_seconds: float
    horizon_seconds: float
    models: tuple[ModelPlan | UndecidedPlan, ...]
    actions: tuple[PlanAction, ...]
    bounds: tuple[str, ...]
