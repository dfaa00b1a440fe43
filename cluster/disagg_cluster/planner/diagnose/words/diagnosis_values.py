"""A diagnosis as values for JSON: stable names with units, times with time zone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disagg_cluster.host.spans import timestamp
from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    DiagnosisOutcome,
    EngineKey,
    EngineParts,
    ModelDiagnosis,
    TtftPart,
)

Value = Mapping[str, object]


def diagnosis_value(diagnosis: ModelDiagnosis) -> Value:
    """One model: outcome, findings, and the time to first token by engine and part."""
    return {
        "cluster": diagnosis.model.cluster,
        "model_name": diagnosis.model.model_name,
        "engine_namespace": diagnosis.model.engine_namespace,
        "time": timestamp(diagnosis.now_seconds),
        "outcome": diagnosis.outcome.value,
        "undecided": undecided_reason(diagnosis),
        "text": diagnosis.text,
        "findings": [_finding(each) for each in diagnosis.findings],
        "suspects": [_finding(each) for each in diagnosis.suspects],
        "missing": list(diagnosis.missing),
        "ttft_parts": [_parts(each) for each in diagnosis.parts],
    }


def undecided_reason(diagnosis: ModelDiagnosis) -> str | None:
    """Why a diagnosis is undecided, as a word; None if it is not."""
    if diagnosis.outcome is not DiagnosisOutcome.UNDECIDED:
        return None
    return "missing_evidence" if diagnosis.missing else "unexplained"


def _finding(finding: BottleneckFinding) -> Value:
    remedy, other = finding.remedy, finding.alternative
    return {
        "cause": finding.cause.value,
        "role": finding.role.value,
        "engines": [_engine(each) for each in finding.engines],
        "confidence": finding.confidence,
        "ttft_cost_seconds": finding.ttft_cost_seconds,
        "engine_cost_seconds": finding.engine_cost_seconds,
        "since": timestamp(finding.since_seconds),
        "text": finding.text,
        "alternative": other and {"cause": other.cause.value, "text": other.text},
        "evidence": [
            {
                "name": each.name,
                "value": each.value,
                "expected": each.expected,
                "unit": each.unit,
                "text": each.text,
            }
            for each in finding.evidence
        ],
        "action": {
            "kind": remedy.kind.value,
            "value": remedy.value,
            "ttft_gain_seconds": remedy.ttft_gain_seconds,
            "text": remedy.text,
        },
    }


def _parts(parts: EngineParts) -> Value:
    return {
        "engine": None if parts.engine is None else _engine(parts.engine),
        "role": parts.role.value,
        "observed_seconds": _by_part(parts.observed_seconds),
        "expected_seconds": _by_part(parts.expected_seconds),
    }


def _engine(key: EngineKey) -> Value:
    return {"node": key.node, "engine": key.engine}


def _by_part(seconds: Sequence[tuple[TtftPart, float]]) -> Value:
    return {part.value: each for part, each in seconds}
