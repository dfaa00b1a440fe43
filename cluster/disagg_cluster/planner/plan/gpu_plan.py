"""The contents of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import Role

SHORT_QUANTILE = 0.9
"""A role is short by what it lacks in this share of the futures; dashboards and alerts say so."""


class PlanActionKind(StrEnum):
    """What to do with workers."""

    ADD = "add"
    REMOVE = "remove"
    MOVE = "move"


@dataclass(frozen=True, slots=True)
class PlanAction:
    """An action at `at_seconds`: add or remove `engines` of a role on `gpus` GPUs each.

    A move gives engines of `role` the role `to_role`, on the same GPUs.
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

    `needed` GPUs meet the targets with the probability `quantile`; the plan would have
    `recommended` GPUs then. `shortfall` is by how many these are too few, for a bound or a lead
    time, and `missing` by how many the current ones are.
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
        """How many GPUs are missing if nothing is done."""
        return max(0, self.needed - self.current)


@dataclass(frozen=True, slots=True)
class RoleCourse:
    """GPUs of one role in each block of its forecast, of which the rows are samples.

    `needed` is by quantile; `serving` are those that the plan has then.
    """

    start_seconds: float
    step_seconds: float
    needed: Mapping[float, tuple[int, ...]]
    serving: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role of one model on GPUs of one name: what to order now, and all horizons.

    `engines_now` is what to set the role to at once: engines added now serve a lead time later.
    `reasons` say why, in plain words, and are never empty.
    """

    role: Role
    gpu_name: str
    gpus: int
    engines: int
    engines_now: int
    rows: tuple[PlanRow, ...]
    course: RoleCourse
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """Cost of some numbers of engines over the horizon, as the mean of all futures.

    `minutes_over_target` have too few engines of some role; `idle_gpu_hours` are held and not
    needed. `money` is for all GPUs held, if prices are known.
    """

    minutes_over_target: float
    idle_gpu_hours: float
    gpu_hours: float
    money: float | None


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model: its roles, the cost of doing nothing and of following it, and past errors.

    Rows and costs are for `horizon_seconds`, which is shorter than the plan's if less is forecast.
    """

    model_name: str
    engine_namespace: str
    horizon_seconds: float
    roles: tuple[RolePlan, ...]
    drivers: tuple[str, ...]
    error_so_far: str
    doing_nothing: ExpectedCost
    following: ExpectedCost


@dataclass(frozen=True, slots=True)
class UndecidedPlan:
    """No plan for a model, and why; it keeps its GPUs."""

    model_name: str
    engine_namespace: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The plan of a cluster at `now_seconds`, with its models in the order given.

    `bounds` lists the bounds that bind, since when, and how many GPUs they leave short.
    """

    now_seconds: float
    horizon_seconds: float
    models: tuple[ModelPlan | UndecidedPlan, ...]
    actions: tuple[PlanAction, ...]
    bounds: tuple[str, ...]
