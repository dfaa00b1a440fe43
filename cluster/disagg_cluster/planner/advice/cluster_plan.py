"""The plan of a cluster, from its history, its engines and the planner file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from disagg_cluster.planner.advice.demands import AS_IT_IS, ClusterEngines, DemandBuilder, LoadScale
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.plan.gpu_plan import GpuPlan, ModelPlan, UndecidedPlan
from disagg_cluster.planner.plan.planner import plan
from disagg_cluster.planner.plan.schedule import PlanCosts, PlanTiming
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.errors import DisaggError


def cluster_plan(
    builder: DemandBuilder,
    config: PlannerConfig,
    histories: Sequence[LoadHistory],
    engines: ClusterEngines,
    now_seconds: float,
    scale: LoadScale = AS_IT_IS,
) -> GpuPlan:
    """Plan for all models together.

    Args:
        builder: Keeps what was worked out for the last plan.
        config: The planner file.
        histories: The load of each model until now.
        engines: Those that run.
        now_seconds: Unix time.
        scale: What if the load were another.
    """
    timing = config.timing
    made = plan(
        [builder.demand(each, engines, scale) for each in histories],
        config.bounds(),
        PlanTiming(timing.lead_seconds, timing.drain_seconds, timing.hold_seconds),
        now_seconds,
        PlanCosts(config.short_weight),
        engines.of_others({each.key for each in histories}),
    )
    return replace(made, models=tuple(_with_reasons(each, engines) for each in made.models))


class SeveralClustersError(DisaggError):
    """Loads of several clusters, and nobody says which is meant."""


def check_one_cluster(clusters: Iterable[str]) -> None:
    """Raise `SeveralClustersError` unless all are one: engines of others serve none of its load."""
    there = sorted(set(clusters))
    if len(there) > 1:
        names = ", ".join(map(repr, there))
        raise SeveralClustersError(
            f"Prometheus knows several clusters ({names}): `cluster:` of the planner file, or "
            f"`--cluster`, says which"
        )


def _with_reasons(
    model: ModelPlan | UndecidedPlan, engines: ClusterEngines
) -> ModelPlan | UndecidedPlan:
    """Of a model without a plan also what its engines have not learned yet."""
    if isinstance(model, ModelPlan):
        return model
    unlearned = engines.unlearned(model.model_name, model.engine_namespace)
    return replace(model, reason="; ".join((model.reason, *unlearned)))


def load_factors(scale: LoadScale) -> Mapping[str, object]:
    """What is asked for, by name."""
    return asdict(scale)
