"""Requests that pile up in engines before any queue or late user shows that there are too many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.verdict.values import Cause
from support.diagnosed_lines import TARGETS
from support.diagnosis_windows import Line, WindowMaker

MIXED = tuple(Line(f"m{number}", role="mixed") for number in range(2))


def found(in_flight: float, growing: float, requests: float = 3.2) -> list[tuple[Cause, list[str]]]:
    """Causes where more requests come, of so many in flight that grow by some with each scrape.

    Users wait for 0.7 s instead of 0.4, of 2 s that they may.
    """
    more = {"requests": requests, "wait_seconds": 0.7}
    window = WindowMaker(onset_seconds=510.0).make([replace(m, then=more) for m in MIXED])
    for series in window.of("disagg_engine_requests"):
        if series.labels["state"] == "running":
            series.values[-7:] = in_flight + growing * np.arange(7)
    (diagnosis,), _ = diagnose(window, TARGETS)
    return [(each.cause, [key.engine for key in each.engines]) for each in diagnosis.findings]


def test_requests_that_pile_up_are_too_much_demand_before_users_are_late() -> None:
    assert found(5.0, 6.0) == [(Cause.DEMAND, [])]


@pytest.mark.parametrize(
    ("in_flight", "growing", "requests"),
    [(12.0, 0.0, 3.2), (12.0, 1.0, 3.2), (5.0, 6.0, 2.0)],
    ids=["no_more", "hardly_more", "not_more_load"],
)
def test_a_number_in_flight_that_the_load_explains_is_no_cause(
    in_flight: float, growing: float, requests: float
) -> None:
    assert found(in_flight, growing, requests) == []
