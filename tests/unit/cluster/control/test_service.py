"""What requests see of a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_cluster.control.service import RoutingView, worker_view
from disagg_cluster.lifecycle.state import Lifecycle, WorkerIdentity, WorkerState
from disagg_cluster.supervisor.worker_spec import WorkerSnapshot
from support.supervisors import tiny_spec

SILENT = "/health: no answer in time"


@pytest.mark.parametrize(
    ("state", "up", "unanswered"),
    [
        (WorkerState.READY, False, SILENT),
        (WorkerState.READY, True, ""),
        # No probe could be made: that is our own trouble.
        (WorkerState.READY, None, ""),
        # It need not answer yet, or any more.
        (WorkerState.STARTING, False, ""),
        (WorkerState.DRAINING, False, ""),
    ],
)
def test_a_ready_worker_with_a_failed_probe_is_shown_as_unanswered(
    folder: Path, state: WorkerState, up: bool | None, unanswered: str
) -> None:
    life = Lifecycle(state, up=up, probe_why=SILENT)
    snapshot = WorkerSnapshot(tiny_spec(folder), life, WorkerIdentity(), 7, "healthy")

    assert worker_view(snapshot, 0, RoutingView()).unanswered == unanswered


def test_a_worker_is_shown_with_the_cause_of_its_last_crash(folder: Path) -> None:
    whose = tiny_spec(folder), Lifecycle(WorkerState.READY), WorkerIdentity()
    snapshot = WorkerSnapshot(*whose, 7, "healthy", "ended unasked with exit code 1")

    assert worker_view(snapshot, 0, RoutingView()).cause == "ended unasked with exit code 1"
