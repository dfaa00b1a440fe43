"""GPU time that engines wasted in the past, recomputed once an hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import DemandBuilder
from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit, past_split
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.plan.model_demand import RunningEngines
from disagg_cluster.planner.settings.planner_file import PlannerConfig

LASTS_SECONDS = 3600.0
_MODELS_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class _Evaluation:
    made_seconds: float
    engines: tuple[RunningEngines, ...]
    split: PastSplit | UndecidedPastSplit


class PastWaste:
    """Keeps the result of each model; a round evaluates only a few, since each takes seconds.

    Args:
        builder: Caches the capacities computed for plans.
        config: The planner file.
    """

    def __init__(self, builder: DemandBuilder, config: PlannerConfig) -> None:
        self._builder = builder
        self._config = config
        self._evaluations: dict[LoadKey, _Evaluation] = {}

    def evaluate(
        self, histories: Sequence[LoadHistory], engines: ClusterEngines, now_seconds: float
    ) -> tuple[PastSplit | UndecidedPastSplit, ...]:
        """Return known results; those of models that are gone or changed engines are dropped."""
        there = {each.key: self._engines_of(each.key, engines) for each in histories}
        self._evaluations = {
            key: each for key, each in self._evaluations.items() if there.get(key) == each.engines
        }
        due_seconds = {each.key: self._due_seconds(each.key, now_seconds) for each in histories}
        due = [each for each in histories if due_seconds[each.key] <= now_seconds]
        due.sort(key=lambda each: due_seconds[each.key])
        for history in due[:_MODELS_A_ROUND]:
            split = past_split(self._builder, self._config, history, engines)
            self._evaluations[history.key] = _Evaluation(now_seconds, there[history.key], split)
        return tuple(
            self._evaluations[each.key].split for each in histories if each.key in self._evaluations
        )

    def _engines_of(self, key: LoadKey, engines: ClusterEngines) -> tuple[RunningEngines, ...]:
        settings = self._config.of_model(key.model_name, key.engine_namespace)
        return engines.of_model_or_file(key, settings)

    def _due_seconds(self, key: LoadKey, now_seconds: float) -> float:
        """When a model is due for evaluation; 0 if it never was, or at a time still to come."""
        evaluation = self._evaluations.get(key)
        if evaluation is None or evaluation.made_seconds > now_seconds:
            return 0.0
        return evaluation.made_seconds + LASTS_SECONDS
