"""Errors of the planner's own forecasts, once their outcomes are known."""

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
"""Least outcomes of own forecasts for an error; until then a back-test provides it."""
BACK_TEST_ORIGINS = 8
_LATE_SECONDS = 1800.0

ForecastKey = tuple[LoadKey, Phase, float]
"""Owner of a load, phase, and seconds ahead."""


@dataclass(slots=True)
class _HorizonRecord:
    """Forecasts of one horizon that still wait for their outcome, and the known outcomes."""

    waiting: deque[tuple[float, float]] = field(default_factory=deque)
    outcomes: deque[tuple[float, float, float]] = field(default_factory=deque)

    def wait_for(self, at_seconds: float, median: float) -> None:
        """Keep a forecast; later ones are dropped: the clock was set back since."""
        while self.waiting and self.waiting[-1][0] > at_seconds:
            self.waiting.pop()
        self.waiting.append((at_seconds, median))

    def settle(self, series: LoadSeries, now_seconds: float) -> None:
        """Record outcomes that are known by now; drop forecasts whose outcome will stay unknown."""
        while self.waiting:
            at_seconds, median = self.waiting[0]
            observed = _value_at(series, at_seconds)
            if observed is None:
                if at_seconds > now_seconds - _LATE_SECONDS:
                    break
                self.waiting.popleft()
                continue
            self.waiting.popleft()
            self.outcomes.append((at_seconds, abs(median - observed), observed))
        while self.outcomes and self.outcomes[0][0] < now_seconds - KEPT_SECONDS:
            self.outcomes.popleft()
        while self.outcomes and self.outcomes[-1][0] > now_seconds:
            self.outcomes.pop()

    @property
    def error_ratio(self) -> float | None:
        total = sum(outcome[2] for outcome in self.outcomes)
        if len(self.outcomes) < LEAST_OUTCOMES or total <= 0:
            return None
        return sum(outcome[1] for outcome in self.outcomes) / total


class PastForecasts:
    """Keeps forecast medians of each horizon until their outcomes are known.

    They are kept in memory; after a start a back-test on the history stands in for them.
    """

    def __init__(self) -> None:
        self._records: dict[ForecastKey, _HorizonRecord] = {}
        self._tested: dict[ForecastKey, float | None] = {}

    def remember(self, outlooks: Iterable[ModelOutlook]) -> None:
        """Keep the present forecasts."""
        for outlook in outlooks:
            for phase in outlook.phases:
                for each in phase.horizons:
                    if isinstance(each, HorizonLoad):
                        middle = int(np.argmin(np.abs(np.asarray(phase.quantiles) - 0.5)))
                        key = (outlook.key, phase.phase, each.horizon_seconds)
                        record = self._records.setdefault(key, _HorizonRecord())
                        record.wait_for(each.at_seconds, each.tokens_per_second[middle])

    def settle(self, outlooks: Iterable[ModelOutlook], now_seconds: float) -> None:
        """Compare kept forecasts with the known load; drop models that are gone."""
        loads = {
            (outlook.key, phase.phase): phase.series
            for outlook in outlooks
            for phase in outlook.phases
        }
        self._records = {key: each for key, each in self._records.items() if key[:2] in loads}
        self._tested = {key: each for key, each in self._tested.items() if key[:2] in loads}
        for key, record in self._records.items():
            record.settle(loads[key[:2]], now_seconds)

    def back_test_next(self, outlooks: Iterable[ModelOutlook]) -> bool:
        """Back-test one phase of a model not tested yet; return whether there was one."""
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

    def error_ratios(self) -> Mapping[ForecastKey, float]:
        """Error ratios by owner, phase and horizon; unknown ones are left out."""
        found: dict[ForecastKey, float] = {}
        for key in {*self._records, *self._tested}:
            own = self._records[key].error_ratio if key in self._records else None
            ratio = own if own is not None else self._tested.get(key)
            if ratio is not None:
                found[key] = ratio
        return found


def _value_at(series: LoadSeries, at_seconds: float) -> float | None:
    step = round((at_seconds - series.start_seconds) / series.step_seconds)
    if not 0 <= step < len(series.values) or not np.isfinite(series.values[step]):
        return None
    return float(series.values[step])
