"""A report as values for JSON: units in the names, times with date and zone, the unknown null."""

from __future__ import annotations

from dataclasses import asdict

from disagg_cluster.host.spans import timestamp
from disagg_cluster.inspect.report.coverage import Coverage, Incident
from disagg_cluster.inspect.report.figures import Report

_Value = dict[str, object]


def report_value(report: Report) -> _Value:
    """Return all figures of a report; `gpus` are mean GPUs by phase in each bucket."""
    period = report.period
    return {
        "begin": timestamp(period.start_seconds),
        "end": timestamp(period.end_seconds),
        "bucket_seconds": period.bucket_seconds,
        "cluster": report.cluster,
        "covered_ratio": report.covered_ratio,
        "coverage": None if report.coverage is None else _coverage(report.coverage),
        "gpu_hours": dict(report.gpu_hours),
        "prefill_share_ratio": report.prefill_share_ratio,
        "prefill_decode_ratio": report.prefill_decode_ratio,
        "occupancy_ratio": report.occupancy_ratio,
        "gpus": {phase: list(values) for phase, values in report.gpus.items()},
        "idle": [
            {"reason": each.name, "gpu_hours": each.gpu_hours, "cost": each.cost}
            for each in report.idle
        ],
        "energy_kilowatt_hours": dict(report.energy_kilowatt_hours),
        "cost": report.cost,
        "currency": report.currency,
        "priced_ratio": report.priced_ratio,
        "accounts": [asdict(each) for each in report.accounts],
        "incidents": [_incident(each) for each in report.incidents],
        "notes": list(report.notes),
    }


def _coverage(coverage: Coverage) -> _Value:
    return {
        "gpus": coverage.gpus,
        "nodes": coverage.nodes,
        "nodes_part_time": coverage.nodes_part_time,
        "accounted_ratio": coverage.accounted_ratio,
        "expected_gpu_hours": coverage.expected_gpu_hours,
        "accounted_gpu_hours": coverage.accounted_gpu_hours,
        "unobserved_gpu_hours": dict(coverage.unobserved),
        "missing_gpu_hours": coverage.missing_gpu_hours,
    }


def _incident(incident: Incident) -> _Value:
    """Return an incident; null is an end beyond the period."""
    return {
        "alert": incident.alert,
        "severity": incident.severity,
        "whose": incident.whose,
        "begin": None if incident.open_start else timestamp(incident.start_seconds),
        "end": None if incident.open_end else timestamp(incident.end_seconds),
        "seen_seconds": incident.length_seconds,
    }
