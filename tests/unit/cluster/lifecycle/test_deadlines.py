"""When a worker is started next."""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.deadlines import PlannedStart
from disagg_cluster.lifecycle.state import Lifecycle, Presence, WorkerState

S = 1_000_000_000
POLICY = RestartPolicy(failed_retry_seconds=300)


def test_the_planned_start_time_is_constant_until_the_plan_changes() -> None:
    now = 100.0
    planned = PlannedStart(lambda: round(now * S), lambda: 7000.25 + now * 1.0001)
    waits = Lifecycle(WorkerState.BACKOFF, since_ns=100 * S, retry_ns=108 * S)

    assert planned.seconds(waits, POLICY) == 7000.25 + 100.01 + 8
    now = 104.0
    assert planned.seconds(waits, POLICY) == 7000.25 + 100.01 + 8
    given_up = replace(waits, state=WorkerState.FAILED)
    assert planned.seconds(given_up, POLICY) == 7000.25 + 104 * 1.0001 + 296


def test_there_is_no_start_time_without_a_planned_start() -> None:
    planned = PlannedStart(lambda: 0, lambda: 0.0)
    runs = Lifecycle(WorkerState.STARTING, Presence.RUNNING)
    ends = Lifecycle(WorkerState.BACKOFF, Presence.RUNNING, retry_ns=5)

    assert planned.seconds(runs, POLICY) is None
    assert planned.seconds(ends, POLICY) is None
    assert planned.seconds(Lifecycle(), POLICY) is None
    assert (
        planned.seconds(Lifecycle(WorkerState.FAILED), replace(POLICY, failed_retry_seconds=0))
        is None
    )
    paused = Lifecycle(WorkerState.BACKOFF, paused_ns=1, retry_ns=5)
    assert planned.seconds(paused, POLICY) is None
