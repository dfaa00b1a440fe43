"""When moves ended, read from the nodes' counters in a real Prometheus."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from disagg_cluster.planner.moving.reported_moves import ReportedMoves
from disagg_cluster.prometheus.prometheus_api import Prometheus
from support.backfill import At, Past, openmetrics, prometheus_with

pytestmark = pytest.mark.prometheus


def moves(worker: str, outcome: str, at: At, **more: str) -> Past:
    labels = {"cluster": "east", "node": "a", "worker": worker, "outcome": outcome}
    return Past("disagg_reassign_moves_total", labels | more, at)


def test_moves_are_read_with_the_time_of_their_end_whatever_came_of_them(tmp_path: Path) -> None:
    now = int(time.time()) // 30 * 30

    def counting(*ends: int, first: int = 0) -> At:
        return lambda at: float(first + sum(end <= at for end in ends))

    def anew(at: int) -> float | None:
        """Four moves, then a new daemon, after two minutes without one, and a move under it."""
        if at < now - 900:
            return 4.0
        return None if at < now - 780 else float(at >= now - 600)

    text = openmetrics(
        [
            moves("p-0", "done", counting(now - 7200, now - 1800, now - 1200, first=5)),
            moves("p-0", "rolled_back", counting(now - 300)),
            # Two servers scrape the same node.
            moves("p-1", "done", counting(now - 60), replica="0"),
            moves("p-1", "done", counting(now - 60), replica="1"),
            moves("d-0", "done", anew),
            moves("d-1", "done", counting(first=6)),
            moves("d-2", "done", counting(now - 300), cluster="west"),
        ],
        range(now - 7500, now + 1, 15),
    )
    with (
        prometheus_with(text, tmp_path) as url,
        contextlib.closing(Prometheus(url)) as client,
    ):
        found = ReportedMoves(client, "east", 3600.0).read(now)

    assert found == {
        ("a", "p-0"): (now - 1800, now - 1200, now - 300),
        ("a", "p-1"): (now - 60,),
        ("a", "d-0"): (now - 600,),
    }
