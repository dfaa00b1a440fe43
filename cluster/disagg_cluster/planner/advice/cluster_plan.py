"""The plan of a cluster, from its history, its engines and the planner file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import UNSCALED, DemandBuilder, LoadScale
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.plan.gpu_plan import GpuPlan, ModelPlan, RolePlan, UndecidedPlan
from disagg_cluster.planner.plan.planner import plan
from disagg_cluster.planner.plan.schedule import PlanCosts, PlanTiming
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role


def cluster_plan(
    builder: DemandBuilder,
    config: PlannerConfig,
    histories: Sequence[LoadHistory],
    engines: ClusterEngines,
    now_seconds: float,
    scale: LoadScale = UNSCALED,
) -> GpuPlan:
    """Plan for all models together.

    Args:
        builder: Caches what was computed for the last plan.
        config: The planner file.
        histories: The load of each model until now.
        engines: The engines that run.
        now_seconds: Unix time.
        scale: A change of the load to assume.
    """
    timing = config.timing
    made = plan(
        [builder.demand(each, engines, scale) for each in histories],
        config.bounds(),
        PlanTiming(timing.lead_seconds, timing.drain_seconds, timing.hold_seconds),
        now_seconds,
        PlanCosts(config.short_weight),
        engines.of_other_models({each.key for each in histories}),
    )
    return replace(made, models=tuple(_with_reasons(each, engines) for each in made.models))


class SeveralClustersError(DisaggError):
    """Loads of several clusters, without a choice of one."""


def check_one_cluster(clusters: Iterable[str]) -> None:
    """Raise `SeveralClustersError` for several: engines of one serve no load of another."""
    distinct = sorted(set(clusters))
    if len(distinct) > 1:
        names = ", ".join(map(repr, distinct))
        raise SeveralClustersError(
            f"Prometheus knows several clusters ({names}): `cluster:` of the planner file, or "
            f"`--cluster`, says which"
        )


def _with_reasons(
    model: ModelPlan | UndecidedPlan, engines: ClusterEngines
) -> ModelPlan | UndecidedPlan:
    """Add which engines are not seen, and without a plan what engines have not learned yet."""
    unseen = engines.unseen(model.model_name, model.engine_namespace)
    if isinstance(model, UndecidedPlan):
        unlearned = engines.unlearned(model.model_name, model.engine_namespace)
        also = (f"{role} counts {words}" for (role, _), words in sorted(unseen.items()))
        return replace(model, reason="; ".join((model.reason, *unlearned, *also)))
    return replace(model, roles=tuple(_role_with_reasons(each, unseen) for each in model.roles))


def _role_with_reasons(role: RolePlan, unseen: Mapping[tuple[Role, str], str]) -> RolePlan:
    words = unseen.get((role.role, role.gpu_name))
    return replace(role, reasons=(*role.reasons, f"counts {words}")) if words else role


def load_factors(scale: LoadScale) -> Mapping[str, object]:
    """The factors, by name."""
    return asdict(scale)
