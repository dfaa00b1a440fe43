"""How far off own forecasts were, once it is known what came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.outlook.back_test import HorizonScore, back_test
from disagg_cluster.planner.outlook.model_outlook import HorizonLoad, ModelOutlook
from disagg_exporter.model import Phase

KEPT_SECONDS = 86_400.0
LEAST_OUTCOMES = 12
"""Fewer own forecasts that have come true judge nobody; until then a back-test does."""
BACK_TEST_ORIGINS = 8
_LATE_SECONDS = 1800.0

Place = tuple[LoadKey, Phase, float]
"""Whose load, of which phase, how many seconds ahead."""


@dataclass(slots=True)
class _Said:
    """Of one horizon: what was said of times to come, and how the past ones turned out."""

    waiting: deque[tuple[float, float]] = field(default_factory=deque)
    outcomes: deque[tuple[float, float, float]] = field(default_factory=deque)

    def settle(self, series: LoadSeries, now_seconds: float) -> None:
        """Take the outcomes that are known by now; forget those that nobody will ever know."""
        while self.waiting:
            at_seconds, median = self.waiting[0]
            came = _value_at(series, at_seconds)
            if came is None:
                if at_seconds > now_seconds - _LATE_SECONDS:
                    break
                self.waiting.popleft()
                continue
            self.waiting.popleft()
            self.outcomes.append((at_seconds, abs(median - came), came))
        while self.outcomes and self.outcomes[0][0] < now_seconds - KEPT_SECONDS:
            self.outcomes.popleft()

    @property
    def error_ratio(self) -> float | None:
        came = sum(outcome[2] for outcome in self.outcomes)
        if len(self.outcomes) < LEAST_OUTCOMES or came <= 0:
            return None
        return sum(outcome[1] for outcome in self.outcomes) / came


class PastForecasts:
    """Keeps the medians that were forecast until it is known what came, for each horizon.

    They are kept in memory; after a start a back-test on the history stands in for them.
    """

    def __init__(self) -> None:
        self._said: dict[Place, _Said] = {}
        self._tested: dict[Place, float | None] = {}

    def remember(self, outlooks: Iterable[ModelOutlook]) -> None:
        """Keep what is forecast now."""
        for outlook in outlooks:
            for phase in outlook.phases:
                for each in phase.horizons:
                    if isinstance(each, HorizonLoad):
                        middle = int(np.argmin(np.abs(np.asarray(phase.quantiles) - 0.5)))
                        place = (outlook.key, phase.phase, each.horizon_seconds)
                        said = self._said.setdefault(place, _Said())
                        said.waiting.append((each.at_seconds, each.tokens_per_second[middle]))

    def settle(self, outlooks: Iterable[ModelOutlook], now_seconds: float) -> None:
        """Hold what was said against what is known now; forget models that are gone."""
        loads = {
            (outlook.key, phase.phase): phase.series
            for outlook in outlooks
            for phase in outlook.phases
        }
        self._said = {place: each for place, each in self._said.items() if place[:2] in loads}
        self._tested = {place: each for place, each in self._tested.items() if place[:2] in loads}
        for place, said in self._said.items():
            said.settle(loads[place[:2]], now_seconds)

    def test_next(self, outlooks: Iterable[ModelOutlook]) -> bool:
        """Back-test one phase of a model that was not tested yet; whether there was one."""
        for outlook in outlooks:
            for phase in outlook.phases:
                horizons = [
                    each.horizon_seconds
                    for each in phase.horizons
                    if isinstance(each, HorizonLoad)
                    and (outlook.key, phase.phase, each.horizon_seconds) not in self._tested
                ]
                if not horizons:
                    continue
                for score in back_test(phase.series, horizons, BACK_TEST_ORIGINS, phase.quantiles):
                    ratio = score.error_ratio if isinstance(score, HorizonScore) else None
                    self._tested[outlook.key, phase.phase, score.horizon_seconds] = ratio
                return True
        return False

    def error_ratios(self) -> Mapping[Place, float]:
        """By whose, which phase and how far ahead; without those that cannot be known yet."""
        found: dict[Place, float] = {}
        for place in {*self._said, *self._tested}:
            own = self._said[place].error_ratio if place in self._said else None
            ratio = own if own is not None else self._tested.get(place)
            if ratio is not None:
                found[place] = ratio
        return found


def _value_at(series: LoadSeries, at_seconds: float) -> float | None:
    step = round((at_seconds - series.start_seconds) / series.step_seconds)
    if not 0 <= step < len(series.values) or not np.isfinite(series.values[step]):
        return None
    return float(series.values[step])
