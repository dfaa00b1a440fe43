"""The engines of a cluster as metrics show them: kinds, learned costs, recent request shapes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.learned.cost_families import CostFamilies, CostKey
from disagg_cluster.planner.capacity.learned.prometheus_costs import PrometheusCosts, costs_of
from disagg_cluster.planner.capacity.learned.request_shape import RequestShape
from disagg_cluster.planner.capacity.learned.shape_reader import read_shapes
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.history.range_reader import RangeQueries
from disagg_cluster.planner.plan.model_demand import RunningEngines
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker, unseen_words
from disagg_cluster.planner.settings.sections import ModelSection
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class ClusterEngines:
    """The engines that run, how many of each kind, and their observed step times.

    Those of nodes that are not seen now, and were minutes ago, are among them.

    `workers` are the same engines one by one; `downtime_seconds` is that of recent role changes.
    `shapes` are the recent request shapes by name and namespace of a model.
    """

    running: Mapping[CostKey, int] = field(default_factory=dict)
    costs: Mapping[CostKey, EngineCosts | UndecidedCapacity] = field(default_factory=dict)
    workers: tuple[PoolWorker, ...] = ()
    downtime_seconds: float | None = None
    shapes: Mapping[tuple[str, str], RequestShape] = field(default_factory=dict)

    def of_other_models(self, keys: Set[LoadKey]) -> tuple[RunningEngines, ...]:
        """Engines of all other models."""
        own = {(key.model_name, key.engine_namespace) for key in keys}
        return tuple(
            RunningEngines(kind.role, kind.gpu_name, kind.gpus, count)
            for kind, count in sorted(self.running.items())
            if (kind.model_name, kind.engine_namespace) not in own
        )

    def of_model(self, key: LoadKey) -> dict[CostKey, int]:
        """How many engines of each kind a model has."""
        return {
            kind: count
            for kind, count in self.running.items()
            if (kind.model_name, kind.engine_namespace) == (key.model_name, key.engine_namespace)
        }

    def of_model_or_file(self, key: LoadKey, section: ModelSection) -> tuple[RunningEngines, ...]:
        """The engines of a model; if no engine of any model is known, those in the planner file."""
        if self.running:
            return tuple(
                RunningEngines(kind.role, kind.gpu_name, kind.gpus, count)
                for kind, count in sorted(self.of_model(key).items())
            )
        return tuple(
            RunningEngines(each.role, each.gpu_name, each.gpus, each.engines)
            for each in section.workers
            if each.engines
        )

    def unseen(self, model_name: str, engine_namespace: str) -> dict[tuple[Role, str], str]:
        """Which of a model's engines are not seen now, by role and name of their GPUs."""
        pools: dict[tuple[Role, str], list[PoolWorker]] = defaultdict(list)
        for each in self.workers:
            if (each.kind.model_name, each.kind.engine_namespace) == (model_name, engine_namespace):
                pools[each.kind.role, each.kind.gpu_name].append(each)
        return {pool: words for pool, of in pools.items() if (words := unseen_words(of))}

    def unlearned(self, model_name: str, engine_namespace: str) -> tuple[str, ...]:
        """Why step times of a model's engines are not known, for each kind without them."""
        return tuple(
            f"{key.role} engines on {key.gpus} x {key.gpu_name}: {costs.reason}"
            for key, costs in sorted(self.costs.items(), key=lambda each: each[0])
            if isinstance(costs, UndecidedCapacity)
            and (key.model_name, key.engine_namespace) == (model_name, engine_namespace)
        )


def read_engines(
    prometheus: RangeQueries, cluster: str | None, now_seconds: float
) -> tuple[ClusterEngines, CostFamilies]:
    """The running engines with their request shapes, and the families that show them.

    Raises:
        PrometheusError: No answer in time, or a refusal.
    """
    families = PrometheusCosts(prometheus, cluster).families(now_seconds)
    shapes = read_shapes(prometheus, families, cluster, now_seconds)
    return engines_of(families, shapes), families


def engines_of(
    families: CostFamilies, shapes: Mapping[tuple[str, str], RequestShape] | None = None
) -> ClusterEngines:
    """The engines that run by the metrics that they export, and the measured request shapes.

    Those drained by hand serve nobody: a pool has only the others. Their learned costs still hold.
    """
    running = [each for each in families.engines() if not families.drained(each[0])]
    workers = tuple(
        PoolWorker(
            node=engine[1],
            worker=engine[2],
            kind=key,
            supervised=families.supervised(engine),
            requests=families.requests(engine),
            capacity_used=families.capacity_used(engine),
            is_seen=families.is_seen(engine),
        )
        for engine, key in running
    )
    return ClusterEngines(
        Counter(key for _, key in running),
        costs_of(families),
        workers,
        families.downtime_seconds(),
        shapes or {},
    )
