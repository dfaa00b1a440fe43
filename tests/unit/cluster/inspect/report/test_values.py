from __future__ import annotations

import json
from dataclasses import replace

from disagg_cluster.inspect.report.coverage import Coverage
from disagg_cluster.inspect.report.figures import report_of
from disagg_cluster.inspect.report.values import report_value
from support.histories import four_hours


def test_json_states_how_much_is_unknown() -> None:
    told = report_of(four_hours(), "east", None)
    coverage = Coverage(8.0, 32.0, 20.0, (("no_reading", 4.0),), 2, 1)

    value = report_value(replace(told, coverage=coverage))

    assert json.loads(json.dumps(value, allow_nan=False))["coverage"] == {
        "gpus": 8.0,
        "nodes": 2,
        "nodes_part_time": 1,
        "accounted_ratio": 0.625,
        "expected_gpu_hours": 32.0,
        "accounted_gpu_hours": 20.0,
        "unobserved_gpu_hours": {"no_reading": 4.0},
        "missing_gpu_hours": 8.0,
    }
    assert report_value(told)["coverage"] is None
    assert value["gpus"] == {phase: list(row) for phase, row in told.gpus.items()}


def test_an_incident_that_reaches_beyond_the_period_has_no_end_there() -> None:
    told = report_of(four_hours(), None, None)
    (incident,) = told.incidents
    still = replace(incident, open_start=False, open_end=True)

    whole = json.loads(json.dumps(report_value(replace(told, incidents=(still,)))))
    (value,) = whole["incidents"]

    assert (value["begin"], value["end"]) == ("2025-11-19T16:10:00+00:00", None)
    assert value["seen_seconds"] == incident.length_seconds
