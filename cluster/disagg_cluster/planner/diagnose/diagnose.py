"""Diagnoses, from exported series, what delays the requests of each model."""

from __future__ import annotations

from disagg_cluster.host.spans import duration_text
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.evidence.engine_changes import engine_changes
from disagg_cluster.planner.diagnose.evidence.fleet import read_fleet
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, model_views
from disagg_cluster.planner.diagnose.evidence.series_window import SeriesWindow
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_AFTER, block_bins
from disagg_cluster.planner.diagnose.model_diagnosis import diagnose_model
from disagg_cluster.planner.diagnose.state import DiagnosisState, StandingFinding
from disagg_cluster.planner.diagnose.verdict.values import (
    DiagnosisOutcome,
    ModelDiagnosis,
    ModelKey,
)

__all__ = ["DiagnosisState", "diagnose"]


def diagnose(
    window: SeriesWindow, targets: Targets, past: DiagnosisState | None = None
) -> tuple[tuple[ModelDiagnosis, ...], DiagnosisState]:
    """Diagnose what delays the first token of requests, for each model served in the window.

    Args:
        window: `families.FAMILIES` of some 30 minutes, up to now.
        targets: The latency targets.
        past: The state after the previous diagnosis; without it the window is judged by itself.
    """
    fleet = read_fleet(window)
    if fleet is None or fleet.grid.bins < LEAST_AFTER * block_bins(fleet.grid.step_seconds):
        return _unread(window), DiagnosisState(window.now_seconds)
    found: list[ModelDiagnosis] = []
    standing: list[StandingFinding] = []
    for view in model_views(engine_changes(fleet), targets):
        if (silent := _silent(view, window.now_seconds)) is not None:
            found.append(silent)
            continue
        diagnosis, remembered = diagnose_model(view, past)
        found.append(diagnosis)
        standing += remembered
    return tuple(found), DiagnosisState(window.now_seconds, tuple(standing))


def _silent(view: ModelView, now_seconds: float) -> ModelDiagnosis | None:
    """Undecided diagnosis if no engine of a model is scraped any longer: its findings are over."""
    last_seconds = max(engine.last_seconds for engine in view.engines)
    if now_seconds - last_seconds <= view.changes.fleet.grid.gap_seconds:
        return None
    cluster, namespace, model_name = view.place
    why = (
        f"no engine of it has been scraped for {duration_text(now_seconds - last_seconds)}: it was "
        "ended, or its nodes are down or out of Prometheus' reach"
    )
    return ModelDiagnosis(
        ModelKey(cluster, namespace, model_name),
        now_seconds,
        DiagnosisOutcome.UNDECIDED,
        missing=(why,),
        text="what it does now is not known",
    )


def _unread(window: SeriesWindow) -> tuple[ModelDiagnosis, ...]:
    """Undecided diagnoses of the models of a window with too few scrapes."""
    keys = {
        ModelKey(series.labels.get("cluster", ""), "", series.labels.get("model_name", ""))
        for series in window.of("disagg_engine_info")
        if series.labels.get("model_name")
    }
    why = "engines have not been scraped for long enough"
    return tuple(
        ModelDiagnosis(
            key, window.now_seconds, DiagnosisOutcome.UNDECIDED, missing=(why,), text=why
        )
        for key in sorted(keys)
    )
