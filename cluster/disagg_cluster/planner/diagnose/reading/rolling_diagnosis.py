"""Diagnoses of a rolling window, each model by its own targets."""

from __future__ import annotations

from collections.abc import Callable

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.diagnose import DiagnosisState, diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import SeriesWindow
from disagg_cluster.planner.diagnose.reading.rolling_series import RollingSeries
from disagg_cluster.planner.diagnose.verdict.values import ModelDiagnosis, ModelKey

Diagnoses = tuple[ModelDiagnosis, ...]


class RollingDiagnosis:
    """Reads new samples, diagnoses, and keeps the state so that findings do not flap.

    Args:
        series: The rolling window.
        targets_of: The latency targets of a model.
    """

    def __init__(self, series: RollingSeries, targets_of: Callable[[ModelKey], Targets]) -> None:
        self._series = series
        self._targets_of = targets_of
        self._states: dict[Targets, DiagnosisState] = {}

    def diagnose(self, now_seconds: float) -> Diagnoses:
        """Diagnose every model of the window.

        Raises:
            PrometheusError: As `RollingSeries.read`.
        """
        window = self._series.read(now_seconds)
        # Targets apply to all models, unless a planner file has others for some.
        common = self._targets_of(ModelKey("", "", ""))
        by_targets = {common: self._diagnosed(window, common)}
        found = []
        for key in by_targets[common]:
            targets = self._targets_of(key)
            if targets not in by_targets:
                by_targets[targets] = self._diagnosed(window, targets)
            found.append(by_targets[targets][key])
        return tuple(found)

    def _diagnosed(self, window: SeriesWindow, targets: Targets) -> dict[ModelKey, ModelDiagnosis]:
        diagnoses, self._states[targets] = diagnose(window, targets, self._states.get(targets))
        return {each.model: each for each in diagnoses}
