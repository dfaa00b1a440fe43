"""The planner's state at one time, and the metric rows of its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import disagg_exporter
from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.diagnose.verdict.values import ModelDiagnosis
from disagg_cluster.planner.forecast.trend import PhaseTrend
from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.outlook.model_outlook import (
    HorizonLoad,
    ModelOutlook,
    UndecidedHorizon,
)
from disagg_cluster.planner.plan.gpu_plan import GpuPlan
from disagg_cluster.planner.service.diagnosis_rows import write_diagnoses
from disagg_cluster.planner.service.past_forecasts import ForecastKey
from disagg_cluster.planner.service.plan_rows import write_past, write_plan
from disagg_cluster.planner.service.rebalance_rows import write_rebalance
from disagg_cluster.planner.service.rebalancer import RebalanceRound
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import CollectorStatus

FRESH_INTERVALS = 3
"""The results of a round expire after so many intervals."""


@dataclass(frozen=True, slots=True)
class DiagnosisRound:
    """Results of the last successful diagnosis, shown until `fresh_until_ns`.

    `made_seconds` is its Unix time, None before the first one.
    """

    made_seconds: float | None = None
    fresh_until_ns: int = 0
    diagnoses: tuple[ModelDiagnosis, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannerState:
    """Results of the last successful round, and the health of all rounds.

    `made_seconds` is when that round began (Unix time), None before the first one.
    """

    made_seconds: float | None
    fresh_until_ns: int
    outlooks: tuple[ModelOutlook, ...] = ()
    plan: GpuPlan | None = None
    past: tuple[PastSplit | UndecidedPastSplit, ...] = ()
    running: Mapping[CostKey, int] = field(default_factory=dict)
    error_ratios: Mapping[ForecastKey, float] = field(default_factory=dict)
    collectors: tuple[CollectorStatus, ...] = ()
    process: Mapping[str, float] = field(default_factory=dict)
    http_refusals: Mapping[str, int] = field(default_factory=dict)
    unexpected_failures: Mapping[str, int] = field(default_factory=dict)
    diagnosis: DiagnosisRound = field(default_factory=DiagnosisRound)
    rebalance: RebalanceRound | None = None


def planner_rows(state: PlannerState | None, now_ns: int) -> MetricRows:
    """Return the rows of the planner's page; expired results are left out, health is not."""
    rows = MetricRows()
    rows.set("disagg_planner_build_info", 1, disagg_exporter.__version__)
    if state is None:
        return rows
    _write_lasting(rows, state)
    if now_ns <= state.fresh_until_ns:
        for outlook in state.outlooks:
            _write_outlook(rows, outlook)
        for (key, phase, horizon), ratio in state.error_ratios.items():
            labels = (key.model_name, key.engine_namespace, phase.value, duration(horizon))
            rows.set("disagg_plan_error_ratio", ratio, *labels)
        write_plan(rows, state.plan, state.running)
        write_past(rows, state.past)
        if state.rebalance is not None:
            write_rebalance(rows, state.rebalance)
    if now_ns <= state.diagnosis.fresh_until_ns:
        write_diagnoses(rows, state.diagnosis.diagnoses)
    return rows


def _write_lasting(rows: MetricRows, state: PlannerState) -> None:
    for name, value in state.process.items():
        rows.set(name, value)
    for reason, count in state.http_refusals.items():
        rows.set("disagg_http_refusals_total", count, reason)
    for kind, count in state.unexpected_failures.items():
        rows.set("disagg_collector_unexpected_failures_total", count, kind)
    for status in state.collectors:
        last = status.last_success_timestamp_seconds
        rows.set("disagg_collector_success", float(status.success), status.collector)
        rows.set("disagg_collector_duration_seconds", status.duration_seconds, status.collector)
        rows.set("disagg_collector_last_success_timestamp_seconds", last, status.collector)


def _write_outlook(rows: MetricRows, outlook: ModelOutlook) -> None:
    owner = (outlook.key.model_name, outlook.key.engine_namespace)
    if isinstance(outlook.trend, PhaseTrend):
        rows.set("disagg_forecast_trend_info", 1, *owner, outlook.trend.verdict.value)
    for phase in outlook.phases:
        for each in phase.horizons:
            ahead = duration(each.horizon_seconds)
            if isinstance(each, UndecidedHorizon):
                labels = (*owner, phase.phase.value, ahead, each.reason.value)
                rows.set("disagg_plan_undecided", 1, *labels)
                continue
            assert isinstance(each, HorizonLoad)
            for quantile, load in zip(phase.quantiles, each.tokens_per_second, strict=True):
                labels = (*owner, phase.phase.value, ahead, f"{quantile:g}")
                rows.set("disagg_forecast_tokens_per_second", load, *labels)
