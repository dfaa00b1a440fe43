"""From exported series to what holds each model's requests back, and why."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.evidence.series_window import SeriesWindow
from disagg_cluster.planner.diagnose.verdict.values import (
    DiagnosisOutcome,
    ModelDiagnosis,
    ModelKey,
)


@dataclass(frozen=True, slots=True)
class DiagnosisState:
    """What one diagnosis leaves to the next, so that findings do not flap."""

    now_seconds: float = 0.0


def diagnose(
    window: SeriesWindow, targets: Targets, past: DiagnosisState | None = None
) -> tuple[tuple[ModelDiagnosis, ...], DiagnosisState]:
    """Say of each model served in the window what holds its requests back before their first token.

    Args:
        window: All that is known: `families.FAMILIES` of some 30 minutes, up to now.
        targets: What users were promised.
        past: What the diagnosis before left; without it each window is judged by itself.
    """
    keys = {
        ModelKey(
            series.labels.get("cluster", ""),
            series.labels.get("engine_namespace", ""),
            series.labels.get("model_name", ""),
        )
        for series in window.of("disagg_engine_info")
        if series.labels.get("model_name")
    }
    undecided = tuple(
        ModelDiagnosis(
            key, window.now_seconds, DiagnosisOutcome.UNDECIDED, text="the evidence is not read yet"
        )
        for key in sorted(keys)
    )
    return undecided, DiagnosisState(window.now_seconds)
