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
def test_one_that_does_not_run_is_told_with_what_comes_next_and_where_to_look(
    view: NodeOverview, said: str
) -> None:
    first, second, *_, last = explain(view.workers[0], view, 0)

    assert first == f"d0 has been {'failed' if 'tried' in said else 'in backoff'} for 0s: why"
    assert (second, last) == (said, "disagg-node logs d0 shows what it printed")


def test_a_resume_starts_nothing_that_was_given_up_and_says_so() -> None:
    decided = decide(ResumeWorkers(), node(WorkerState.FAILED, paused_seconds=1.0))

    assert isinstance(decided, Orders)
    assert decided.text == (
        "supervised again: d0; given up before, disagg-node restart starts it: d0"
    )
