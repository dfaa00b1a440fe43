"""Which failures of a worker are reported, and what is said of each."""

import json
from dataclasses import replace
from pathlib import Path

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.failures import Failure, FailureKind, FailureReports, payload
from disagg_cluster.lifecycle.state import (
    Event,
    Exited,
    Health,
    Lifecycle,
    Probed,
    StartRequested,
    Tick,
)
from disagg_cluster.lifecycle.state_machine import decide

S = 1_000_000_000
POLICY = RestartPolicy(hang_probes=2, hang_grace_seconds=0, crash_limit=2, backoff_jitter_ratio=0)
HEALTHY = Probed(1, Health.HEALTHY, "healthy")
FAILURE = Failure(
    FailureKind.CRASHED, "w", "decode", "backoff", "why", -9, 7, 0, 1.5, "/logs/w.log", ("a", "b")
)


class FailingWorker:
    """A worker to which things happen, and the failures that were reported."""

    def __init__(self, policy: RestartPolicy = POLICY) -> None:
        self.failures: list[Failure] = []
        self._reports = FailureReports("w", "decode", Path("/logs/w.log"), self.failures.append)
        self._life, self._now_ns, self._policy = Lifecycle(), 0, policy

    def apply(self, event: Event, after_seconds: float = 1) -> "FailingWorker":
        self._now_ns += round(after_seconds * S)
        old = self._life
        decision = decide(old, event, self._now_ns, self._policy, 0.0)
        self._life = decision.life
        why = "; ".join(decision.notes)
        self._reports.handle(old, decision.life, event, why, 7, ("last words",))
        return self

    def kinds(self) -> list[str]:
        return [failure.event.value for failure in self.failures]


def ready() -> FailingWorker:
    return FailingWorker().apply(StartRequested()).apply(HEALTHY)


def test_a_crash_is_reported_with_its_exit_code_and_last_log_lines() -> None:
    worker = ready().apply(Exited(1, -9, alone=True))

    (failure,) = worker.failures
    assert (failure.event, failure.exit_code, failure.pid) == (FailureKind.CRASHED, -9, 7)
    assert failure.cause.startswith("ended unasked by signal 9 (Killed)")
    assert failure.log_lines == ("last words",)


def test_a_hang_is_reported_once_at_the_kill_and_not_at_the_exit() -> None:
    failing = Probed(1, Health.NO_ANSWER, "no answer in time")
    worker = ready()
    while not worker.failures:
        worker.apply(failing, 60)
    worker.apply(Exited(1, -9, alone=True))

    assert worker.kinds() == ["hung"]


def test_giving_up_after_repeated_crashes_is_reported() -> None:
    worker = ready().apply(Exited(1, 1, alone=True), 0.1).apply(Tick(), 30)
    worker.apply(Exited(2, 1, alone=True), 0.1)

    assert worker.kinds() == ["crashed", "failed"]


def test_recovery_from_a_crash_is_reported_once() -> None:
    worker = ready().apply(Exited(1, 1, alone=True)).apply(Tick(), 30)
    worker.apply(replace(HEALTHY, generation=2)).apply(replace(HEALTHY, generation=2))

    assert worker.kinds() == ["crashed", "recovered"]


def test_a_first_start_is_no_recovery() -> None:
    assert ready().kinds() == []


def test_the_payload_is_one_line_of_json_of_bounded_length() -> None:
    line = payload(FAILURE, "gpu-7", "east")

    assert line.count(b"\n") == 1
    sent = json.loads(line)
    assert (sent["version"], sent["node"], sent["cluster"]) == (1, "gpu-7", "east")
    assert (sent["event"], sent["exit_code"], sent["log_lines"]) == (
        "crashed",
        -9,
        ["a", "b"],
    )
    endless = replace(FAILURE, cause="x" * 10**6, log_lines=("\udcff" * 10**6,) * 10)
    assert len(payload(endless, "n", "c")) < 100_000
