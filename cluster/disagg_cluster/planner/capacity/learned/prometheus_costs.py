"""Step times of a cluster's engines, from any Prometheus-compatible API."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.learned.cost_families import (
    FAMILIES,
    CostFamilies,
    CostKey,
    Sample,
)
from disagg_cluster.planner.capacity.learned.learned_costs import (
    LearnedCosts,
    LearnedSteps,
    learned_costs,
)
from disagg_cluster.planner.capacity.learned.unseen_nodes import UnseenNodesReader
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.history.history_queries import SampleSource
from disagg_cluster.planner.history.range_reader import RangeQueries

# Limits of engines that do not export theirs: defaults of vLLM. Observed steps adjust them.
_MAX_NUM_BATCHED_TOKENS = 8192
_MAX_NUM_SEQS = 256
_STEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PrometheusCosts:
    """Reads the step times of every kind of engine.

    Args:
        prometheus: The client.
        cluster: The engines' cluster; None for all clusters, as a kind is the same in each.
        deadline_seconds: For each answer.
    """

    prometheus: RangeQueries
    cluster: str | None = None
    deadline_seconds: float = 60.0

    def read(self, now_seconds: float) -> dict[CostKey, LearnedCosts | UndecidedCapacity]:
        """Everything exported now; engines whose GPUs are not known are left out.

        Raises:
            PrometheusError: No answer in time, or a refusal.
        """
        return costs_of(self.families(now_seconds))

    def families(self, now_seconds: float) -> CostFamilies:
        """What the engines export now, or on nodes not seen now exported last; raises as `read`."""
        present = {name: list(self._instant(name, now_seconds)) for name in FAMILIES}
        reader = UnseenNodesReader(
            self.prometheus, SampleSource(self.cluster), self.deadline_seconds
        )
        unseen = reader.read(FAMILIES, now_seconds)
        return CostFamilies(unseen.added_to(present), unseen.nodes)

    def _instant(self, name: str, now_seconds: float) -> Iterator[Sample]:
        expr = SampleSource(self.cluster).of(name)
        for series in self.prometheus.query_range(
            expr, now_seconds, now_seconds, _STEP_SECONDS, self.deadline_seconds
        ):
            for _, value in series.values[-1:]:
                if math.isfinite(value):
                    yield series.labels, value


def costs_of(families: CostFamilies) -> dict[CostKey, LearnedCosts | UndecidedCapacity]:
    """Step times of every kind of engine."""
    kinds: dict[CostKey, list[tuple[LearnedSteps, float | None]]] = defaultdict(list)
    for engine, key in families.engines():
        kinds[key].append((families.steps(engine), families.kv_tokens(engine)))
    return {key: _pooled(key, kinds[key]) for key in sorted(kinds)}


def _pooled(
    key: CostKey, engines: list[tuple[LearnedSteps, float | None]]
) -> LearnedCosts | UndecidedCapacity:
    kv_tokens = sorted(tokens for _, tokens in engines if tokens is not None)
    shape = EngineShape(
        key.gpu_name,
        key.gpus,
        kv_tokens[(len(kv_tokens) - 1) // 2] if kv_tokens else None,
        None,
        _MAX_NUM_BATCHED_TOKENS,
        _MAX_NUM_SEQS,
    )
    return learned_costs([steps for steps, _ in engines], shape)
