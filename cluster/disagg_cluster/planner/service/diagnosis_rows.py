"""Metric rows of diagnoses on the planner's page, for current verdicts only."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    DiagnosisOutcome,
    EngineKey,
    ModelDiagnosis,
)
from disagg_cluster.planner.diagnose.words.diagnosis_values import undecided_reason
from disagg_exporter.metrics.family import MetricRows

_POOL = (EngineKey("", ""),)


def write_diagnoses(rows: MetricRows, diagnoses: Iterable[ModelDiagnosis]) -> None:
    """Write the findings of each model; a verdict on a pool has empty node and engine labels."""
    for each in diagnoses:
        owner = (each.model.model_name, each.model.engine_namespace)
        if (reason := undecided_reason(each)) is not None:
            rows.set("disagg_bottleneck_undecided", 1, *owner, reason)
        else:
            found = 0 if each.outcome is DiagnosisOutcome.NO_BOTTLENECK else len(each.findings)
            rows.set("disagg_bottlenecks", found, *owner)
        for finding in each.findings:
            _write_finding(rows, owner, finding)


def _write_finding(rows: MetricRows, owner: tuple[str, str], finding: BottleneckFinding) -> None:
    for key in finding.engines or _POOL:
        of = (key.node, key.engine, *owner, finding.role.value, finding.cause.value)
        rows.set("disagg_bottleneck", finding.confidence, *of)
        rows.set("disagg_bottleneck_ttft_cost_seconds", finding.ttft_cost_seconds, *of)
        rows.set("disagg_bottleneck_action_info", 1, *of, finding.remedy.kind.value)
