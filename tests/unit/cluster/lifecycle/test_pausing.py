"""A paused worker is observed and nothing else; a restart by hand drains first and forgives."""

import pytest

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.deadlines import due_ns
from disagg_cluster.lifecycle.state import (
    KILL,
    TERM,
    Action,
    Drained,
    Event,
    Exited,
    Gone,
    Health,
    Lifecycle,
    PauseRequested,
    Presence,
    Probed,
    RestartRequested,
    Resumed,
    Signal,
    Start,
    StartRequested,
    StopRequested,
    Tick,
    UnpauseRequested,
    WorkerState,
)
from disagg_cluster.lifecycle.state_machine import decide

S = 1_000_000_000
POLICY = RestartPolicy(hang_probes=3, hang_grace_seconds=0, backoff_jitter_ratio=0, crash_limit=3)
FAILING = Probed(1, Health.NO_ANSWER, "no answer in time")
DIED = Exited(1, -9, alone=True)
HEALTHY = Probed(1, Health.HEALTHY, "healthy")
READY: tuple[Event, ...] = (StartRequested(), HEALTHY)
DAYS = 100_000


class Worker:
    """A worker that is told one thing after the other."""

    def __init__(self, *events: Event) -> None:
        self.life = Lifecycle()
        self.now_ns = 0
        self.notes: list[str] = []
        for event in events:
            self.tell(event)

    def tell(self, event: Event, after_seconds: float = 0) -> tuple[Action, ...]:
        self.now_ns += round(after_seconds * S)
        decision = decide(self.life, event, self.now_ns, POLICY, 0.0)
        self.life = decision.life
        self.notes.extend(decision.notes)
        return decision.actions

    def failed(self) -> "Worker":
        """Let it crash until it is given up."""
        while self.life.state is not WorkerState.FAILED:
            self.tell(Exited(self.life.generation, 1, alone=True))
            self.tell(Tick(), 61)
        return self


def test_a_paused_worker_that_hangs_is_not_killed() -> None:
    worker = Worker(*READY, PauseRequested())

    for _ in range(100):
        assert worker.tell(FAILING, 1) == ()
    assert worker.life.state is WorkerState.READY
    assert worker.life.probe_why == "no answer in time"


def test_hang_detection_starts_over_when_a_pause_ends() -> None:
    worker = Worker(*READY, FAILING, FAILING, PauseRequested(), FAILING, FAILING)

    assert worker.tell(UnpauseRequested(), 100) == ()
    assert worker.tell(FAILING, 1) == worker.tell(FAILING, 1) == ()
    assert worker.tell(FAILING, 1) == (Signal(1, KILL),)


def test_a_worker_that_died_while_paused_is_restarted_only_after_the_pause() -> None:
    worker = Worker(*READY, PauseRequested())

    assert worker.tell(DIED, 5) == ()
    assert worker.life.state is WorkerState.BACKOFF
    assert "ended unasked by signal 9" in worker.notes[-1]
    assert "not started again while it is paused" in worker.notes[-1]
    assert due_ns(worker.life, POLICY) is None
    assert worker.tell(Tick(), DAYS) == worker.tell(StartRequested()) == ()

    assert worker.tell(UnpauseRequested()) == (Start(2),)
    assert worker.life.restarts == 1


def test_crashes_during_pauses_never_lead_to_giving_up() -> None:
    worker = Worker(*READY)
    for generation in range(1, 8):
        worker.tell(PauseRequested())
        worker.tell(Exited(generation, 1, alone=True))
        assert worker.tell(UnpauseRequested()) == (Start(generation + 1),)


def test_leftover_processes_of_a_paused_worker_end_only_after_the_pause() -> None:
    worker = Worker(*READY, PauseRequested())

    assert worker.tell(Exited(1, -9, alone=False)) == worker.tell(Tick(), DAYS) == ()
    assert worker.tell(UnpauseRequested()) == (Signal(1, TERM),)
    assert worker.tell(Gone(1)) == (Start(2),)


def test_a_pause_suspends_the_start_deadline_and_its_end_restarts_it() -> None:
    worker = Worker(StartRequested(), PauseRequested())

    assert worker.tell(Tick(), DAYS) == ()
    worker.tell(UnpauseRequested())
    assert worker.tell(Tick(), POLICY.start_seconds - 1) == ()
    assert worker.tell(Tick(), 1) == (Signal(1, TERM),)


def test_a_back_off_elapsed_during_a_pause_ends_with_the_pause() -> None:
    worker = Worker(*READY, DIED, PauseRequested())

    assert worker.tell(Tick(), DAYS) == ()
    assert worker.tell(UnpauseRequested()) == (Start(2),)


def test_a_worker_terminated_before_a_pause_is_not_killed_during_it() -> None:
    worker = Worker(StartRequested())
    worker.tell(Tick(), POLICY.start_seconds)
    assert worker.life.last_signal is TERM
    worker.tell(PauseRequested())

    assert worker.tell(Tick(), DAYS) == ()
    assert worker.tell(UnpauseRequested()) == (Signal(1, TERM),)
    assert worker.tell(Tick(), POLICY.stop_seconds) == (Signal(1, KILL),)


def test_a_stop_is_executed_during_a_pause_and_the_pause_remains() -> None:
    worker = Worker(*READY, PauseRequested(), StopRequested())
    assert worker.life.state is WorkerState.DRAINING
    assert worker.tell(Tick(), POLICY.drain_seconds) == (Signal(1, TERM),)
    assert worker.tell(Tick(), POLICY.stop_seconds) == (Signal(1, KILL),)
    worker.tell(DIED)

    assert worker.life.state is WorkerState.STOPPED
    assert worker.tell(StartRequested()) == ()
    assert worker.tell(UnpauseRequested()) == (Start(2),)


def test_repeated_pause_and_unpause_requests_change_nothing() -> None:
    worker = Worker(*READY, PauseRequested())
    paused = worker.life
    worker.tell(PauseRequested(), 10)
    assert worker.life == paused

    worker.tell(UnpauseRequested())
    supervised = worker.life
    worker.tell(UnpauseRequested(), 10)
    assert worker.life == supervised


@pytest.mark.parametrize("found", list(Presence))
def test_a_pause_survives_a_daemon_restart_for_any_presence_of_the_worker(found: Presence) -> None:
    worker = Worker(*READY, PauseRequested())

    assert worker.tell(Resumed(1, found), 1000) == ()
    assert worker.tell(StartRequested()) == worker.tell(Tick(), DAYS) == ()
    assert worker.life.paused_ns is not None


def test_a_new_daemon_sends_no_signal_to_a_terminated_worker_that_is_paused() -> None:
    worker = Worker(StartRequested())
    worker.tell(Tick(), POLICY.start_seconds)
    worker.tell(PauseRequested())

    assert worker.tell(Resumed(1, Presence.RUNNING)) == ()
    assert worker.tell(Resumed(1, Presence.LEFTOVER)) == ()


def test_a_restart_drains_terminates_and_starts_and_is_no_crash() -> None:
    worker = Worker(*READY)

    assert worker.tell(RestartRequested()) == ()
    assert worker.life.state is WorkerState.DRAINING
    assert worker.tell(Drained(1)) == (Signal(1, TERM),)
    assert worker.tell(Exited(1, 0, alone=True)) == (Start(2),)
    assert (worker.life.restarts, worker.life.crashes_ns, worker.life.restarting) == (0, (), False)


def test_a_restart_has_the_drain_and_stop_deadlines_of_a_stop() -> None:
    worker = Worker(*READY, RestartRequested())

    assert worker.tell(Tick(), POLICY.drain_seconds) == (Signal(1, TERM),)
    assert worker.tell(Tick(), POLICY.stop_seconds) == (Signal(1, KILL),)
    assert worker.tell(DIED) == (Start(2),)


def test_a_repeated_restart_request_restarts_once() -> None:
    worker = Worker(*READY, RestartRequested())
    draining = worker.life

    assert worker.tell(RestartRequested(), 5) == ()
    assert worker.life == draining
    assert worker.tell(RestartRequested(drain=False)) == (Signal(1, TERM),)
    assert worker.tell(RestartRequested(drain=False)) == ()
    assert worker.tell(DIED) == (Start(2),)


def test_a_restart_without_drain_or_of_a_starting_worker_terminates_it_at_once() -> None:
    assert Worker(*READY).tell(RestartRequested(drain=False)) == (Signal(1, TERM),)
    assert Worker(StartRequested()).tell(RestartRequested()) == (Signal(1, TERM),)


def test_a_restart_starts_waiting_and_failed_workers_at_once_and_clears_crashes() -> None:
    given_up = Worker(StartRequested()).failed()
    last = given_up.life.generation
    assert given_up.tell(RestartRequested()) == (Start(last + 1),)
    assert (given_up.life.consecutive_crashes, given_up.life.crashes_ns) == (0, ())

    assert Worker(*READY, DIED).tell(RestartRequested()) == (Start(2),)
    assert Worker().tell(RestartRequested()) == (Start(1),)


def test_a_restart_of_a_worker_that_is_being_killed_waits_until_it_has_gone() -> None:
    worker = Worker(*READY, FAILING, FAILING, FAILING)
    assert worker.life.last_signal is KILL

    assert worker.tell(RestartRequested()) == ()
    assert worker.tell(DIED) == (Start(2),)


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (PauseRequested(), "restart refused: it is paused"),
        (StopRequested(), "restart refused: it is being stopped"),
    ],
)
def test_a_restart_of_a_paused_or_stopping_worker_is_refused(before: Event, why: str) -> None:
    worker = Worker(*READY, before)
    life = worker.life

    assert worker.tell(RestartRequested()) == ()
    assert worker.life == life
    assert worker.notes[-1] == why


def test_a_stop_overrides_a_draining_restart() -> None:
    worker = Worker(*READY, RestartRequested(), StopRequested())
    worker.tell(Drained(1))
    worker.tell(DIED)

    assert worker.life.state is WorkerState.STOPPED


def test_a_pause_cancels_a_draining_restart_and_defers_the_next_start() -> None:
    worker = Worker(*READY, RestartRequested(), PauseRequested())
    assert worker.life.state is WorkerState.READY
    assert worker.tell(Tick(), DAYS) == ()

    ending = Worker(*READY, RestartRequested(drain=False), PauseRequested())
    assert ending.tell(DIED) == ending.tell(Tick(), DAYS) == ()
    assert ending.tell(UnpauseRequested()) == (Start(2),)


def test_a_restart_continues_under_a_new_daemon() -> None:
    draining = Worker(*READY, RestartRequested())
    assert draining.tell(Resumed(1, Presence.RUNNING), 1000) == ()
    assert draining.tell(Drained(1)) == (Signal(1, TERM),)
    assert draining.tell(DIED) == (Start(2),)

    ended = Worker(*READY, RestartRequested())
    assert ended.tell(Resumed(1, Presence.GONE)) == (Start(2),)
    assert ended.life.restarts == 0


def test_a_pause_is_refused_while_the_worker_is_being_stopped() -> None:
    worker = Worker(*READY, StopRequested(), PauseRequested())

    assert worker.life.paused_ns is None
    assert worker.notes[-1] == "pause refused: it is being stopped"
