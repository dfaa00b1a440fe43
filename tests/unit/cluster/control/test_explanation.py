"""What is said of a worker that is not well: all of it true, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_cluster.control.decisions import Orders, decide
from disagg_cluster.control.explanation import explain
from disagg_cluster.control.messages import ResumeWorkers
from disagg_cluster.control.views import DaemonView, NodeOverview, WorkerView
from disagg_cluster.lifecycle.state import WorkerState

DAEMON = DaemonView("1.0", 1, "node", "/run/x", 1.0)


def node(state: WorkerState, **settings: Any) -> NodeOverview:
    worker = WorkerView("d0", state, reason="why", log_path="/run/x/logs/d0.log", **settings)
    return NodeOverview(DAEMON, (worker,))


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (
            node(WorkerState.FAILED),
            "it is not tried again by itself; disagg-node restart d0 tries it now",
        ),
        (
            node(WorkerState.FAILED, deadline_seconds=587.0),
            "it is tried again in 9m 47s; disagg-node restart d0 tries it now",
        ),
        # A restart of a paused worker is refused.
        (
            node(WorkerState.FAILED, paused_seconds=1.0),
            "it is not tried again by itself, nor before it is resumed; then disagg-node restart "
            "d0 tries it now",
        ),
        (node(WorkerState.BACKOFF, deadline_seconds=5.0), "it is started again in 5s"),
    ],
)
def test_an_explanation_of_a_worker_not_running_names_the_next_step_and_the_logs(
    view: NodeOverview, said: str
) -> None:
    first, second, *_, last = explain(view.workers[0], view, 0)

    assert first == f"d0 has been {'failed' if 'tried' in said else 'in backoff'} for 0s: why"
    assert (second, last) == (said, "disagg-node logs d0 shows what it printed")


def test_an_explanation_of_a_worker_that_runs_again_names_the_cause_of_its_last_crash() -> None:
    view = node(WorkerState.READY, restarts=2, cause="ended unasked by signal 9 (Killed)")
    crashed = node(WorkerState.BACKOFF, restarts=2, cause="why")

    assert explain(view.workers[0], view, 0)[-1] == (
        "it was started again after a crash 2 times; the last one: ended unasked by signal 9 "
        "(Killed)"
    )
    assert "it was started again after a crash 2 times" in explain(crashed.workers[0], crashed, 0)


def test_a_resume_of_a_failed_worker_does_not_start_it_and_names_the_restart() -> None:
    decided = decide(ResumeWorkers(), node(WorkerState.FAILED, paused_seconds=1.0))

    assert isinstance(decided, Orders)
    assert decided.text == (
        "supervised again: d0; given up before, disagg-node restart starts it: d0"
    )
