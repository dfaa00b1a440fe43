"""What engines wasted in the past, looked at again once an hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disagg_cluster.planner.advice.demands import ClusterEngines, DemandBuilder
from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit, past_split
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.plan.model_demand import RunningEngines
from disagg_cluster.planner.settings.planner_file import PlannerConfig

LASTS_SECONDS = 3600.0
_MODELS_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class _Judged:
    made_seconds: float
    engines: tuple[RunningEngines, ...]
    split: PastSplit | UndecidedPastSplit


class PastWaste:
    """Keeps of each model what was found; a few are looked at in a round, as it takes seconds.

    Args:
        builder: Keeps the capacities that were worked out for plans.
        config: The planner file.
    """

    def __init__(self, builder: DemandBuilder, config: PlannerConfig) -> None:
        self._builder = builder
        self._config = config
        self._judged: dict[LoadKey, _Judged] = {}

    def look_back(
        self, histories: Sequence[LoadHistory], engines: ClusterEngines, now_seconds: float
    ) -> tuple[PastSplit | UndecidedPastSplit, ...]:
        """What is known now; nothing of models that are gone or whose engines are others by now."""
        there = {each.key: self._engines_of(each.key, engines) for each in histories}
        self._judged = {
            key: each for key, each in self._judged.items() if there.get(key) == each.engines
        }
        due = [each for each in histories if self._due_seconds(each.key) <= now_seconds]
        due.sort(key=lambda each: self._due_seconds(each.key))
        for history in due[:_MODELS_A_ROUND]:
            split = past_split(self._builder, self._config, history, engines)
            self._judged[history.key] = _Judged(now_seconds, there[history.key], split)
        return tuple(self._judged[each.key].split for each in histories if each.key in self._judged)

    def _engines_of(self, key: LoadKey, engines: ClusterEngines) -> tuple[RunningEngines, ...]:
        told = self._config.of_model(key.model_name, key.engine_namespace)
        return engines.of_model_or_file(key, told)

    def _due_seconds(self, key: LoadKey) -> float:
        """When a model is to be looked at again; at once, if it never was."""
        judged = self._judged.get(key)
        return 0.0 if judged is None else judged.made_seconds + LASTS_SECONDS
