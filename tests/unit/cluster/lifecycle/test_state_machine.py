"""The decisions about one worker, by example and under any order of events."""

import signal
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.deadlines import due_ns
from disagg_cluster.lifecycle.state import (
    KILL,
    TERM,
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
    StartFailed,
    StartRequested,
    StopRequested,
    Tick,
    UnpauseRequested,
    Unwatched,
    WorkerState,
)
from disagg_cluster.lifecycle.state_machine import decide
from disagg_cluster.lifecycle.transitions import backoff_seconds, is_frozen, restart_refusal

S = 1_000_000_000
POLICY = RestartPolicy(
    start_seconds=100,
    drain_seconds=30,
    stop_seconds=10,
    leftover_seconds=1,
    backoff_first_seconds=1,
    backoff_max_seconds=8,
    backoff_jitter_ratio=0,
    steady_seconds=60,
    crash_limit=5,
    crash_window_seconds=600,
    failed_retry_seconds=0,
    hang_probes=3,
    hang_grace_seconds=10,
)


@dataclass
class DecidedWorker:
    """A worker that is told one thing after the other, and what was done about it."""

    policy: RestartPolicy = POLICY
    life: Lifecycle = field(default_factory=Lifecycle)
    now_ns: int = 0
    actions: list[Start | Signal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def apply(self, event: Event, after_seconds: float = 0) -> list[Start | Signal]:
        self.now_ns += round(after_seconds * S)
        decision = decide(self.life, event, self.now_ns, self.policy, 0.0)
        self.life = decision.life
        self.actions.extend(decision.actions)
        self.notes.extend(decision.notes)
        return list(decision.actions)

    def healthy(self, after_seconds: float = 0) -> None:
        self.apply(Probed(self.life.generation, Health.HEALTHY, "healthy"), after_seconds)

    def failing(
        self, after_seconds: float = 1, *, took_seconds: float = 0, worked: bool = False
    ) -> list[Start | Signal]:
        """A probe that got no answer; `worked`: it did something while that was awaited."""
        end_ns = self.now_ns + round(after_seconds * S)
        probed = Probed(
            self.life.generation,
            Health.NO_ANSWER,
            "no answer in time",
            began_ns=end_ns - round(took_seconds * S),
            worked_ns=end_ns + 1 if worked else None,
        )
        return self.apply(probed, after_seconds)

    def exits(self, code: int | None = 1, after_seconds: float = 0) -> list[Start | Signal]:
        return self.apply(Exited(self.life.generation, code, alone=True), after_seconds)


def started(policy: RestartPolicy = POLICY) -> DecidedWorker:
    worker = DecidedWorker(policy)
    worker.apply(StartRequested())
    return worker


def ready(policy: RestartPolicy = POLICY) -> DecidedWorker:
    worker = started(policy)
    worker.healthy(5)
    return worker


def test_a_desired_worker_starts_and_is_ready_once_healthy() -> None:
    worker = started()
    assert worker.actions == [Start(1)]
    assert worker.life.state is WorkerState.STARTING

    worker.healthy(5)
    assert worker.life.state is WorkerState.READY
    assert worker.life.restarts == 0


@pytest.mark.parametrize("code", [0, 1, -9, None])
def test_any_unrequested_exit_is_a_crash_and_restarts_after_a_back_off(
    code: int | None,
) -> None:
    worker = ready()

    assert worker.exits(code, 5) == []
    assert worker.life.state is WorkerState.BACKOFF
    assert due_ns(worker.life, POLICY) == worker.now_ns + 1 * S
    assert worker.apply(Tick(), 0.999) == []
    assert worker.apply(Tick(), 0.001) == [Start(2)]
    assert (worker.life.state, worker.life.restarts) == (WorkerState.STARTING, 1)


def test_the_back_off_doubles_until_its_maximum_and_then_the_worker_is_failed() -> None:
    worker = started(replace(POLICY, crash_limit=6))
    waits = []
    while worker.life.state is not WorkerState.FAILED:
        worker.exits(1, 0)
        due = due_ns(worker.life, worker.policy)
        if due is not None:
            waits.append((due - worker.now_ns) / S)
            worker.apply(Tick(), waits[-1])

    assert waits == [1, 2, 4, 8, 8]
    assert worker.life.restarts == 5
    assert worker.apply(Tick(), 1_000_000) == []


def test_repeated_crashes_within_the_window_fail_a_worker_despite_steady_runs() -> None:
    worker = started()
    for _ in range(4):
        worker.healthy(1)
        worker.exits(1, 61)
        assert worker.life.state is WorkerState.BACKOFF
        assert worker.life.consecutive_crashes == 1
        worker.apply(Tick(), 1)
    worker.healthy(1)
    worker.exits(1, 61)

    assert worker.life.state is WorkerState.FAILED
    assert "given up after 5 crashes" in worker.notes[-1]


def test_consecutive_failed_starts_fail_a_worker_even_outside_the_crash_window() -> None:
    worker = started(replace(POLICY, start_seconds=900))
    for _ in range(5):
        worker.exits(1, 500)
        worker.apply(Tick(), 8)

    assert worker.life.state is WorkerState.FAILED


def test_crashes_older_than_the_window_do_not_fail_a_worker_that_was_steady() -> None:
    worker = started()
    for _ in range(20):
        worker.healthy(1)
        worker.exits(1, 200)
        worker.apply(Tick(), 1)

    assert worker.life.state is WorkerState.STARTING
    assert worker.life.restarts == 20


def test_a_start_request_restarts_a_failed_worker_and_clears_its_crashes() -> None:
    worker = started(replace(POLICY, crash_limit=1))
    worker.exits()
    assert worker.life.state is WorkerState.FAILED

    assert worker.apply(StartRequested()) == [Start(2)]
    assert (worker.life.consecutive_crashes, worker.life.restarts) == (0, 0)


def test_a_program_that_cannot_be_started_counts_as_a_crash() -> None:
    worker = started()

    worker.apply(StartFailed(1, "cannot start /x: no such program"))
    assert worker.life.state is WorkerState.BACKOFF
    assert worker.life.presence is Presence.GONE
    assert worker.notes[-1] == "cannot start /x: no such program, next start in 1.0 s"


def test_a_start_past_its_deadline_is_terminated_and_retried_after_the_exit() -> None:
    worker = started()
    worker.apply(Probed(1, Health.FOREIGN, "another process listens on port 8100"), 1)
    assert worker.apply(Tick(), 98.9) == []

    assert worker.apply(Tick(), 0.1) == [Signal(1, TERM)]
    assert worker.life.state is WorkerState.BACKOFF
    assert "another process listens on port 8100" in worker.notes[-1]
    assert worker.apply(Tick(), 10) == [Signal(1, KILL)]
    assert worker.exits(-9) == [Start(2)]
    assert worker.life.consecutive_crashes == 1


def test_a_worker_that_hangs_is_killed_and_started_again() -> None:
    worker = ready()
    worker.apply(Tick(), 20)
    assert worker.failing() == worker.failing() == []

    assert worker.failing() == [Signal(1, KILL)]
    assert worker.life.state is WorkerState.BACKOFF
    assert "hangs: 3 probes failed, the last one: no answer in time" in worker.notes[-1]
    assert worker.apply(Tick(), 2) == []
    assert worker.exits(-9) == [Start(2)]


def test_a_successful_probe_resets_the_failed_probes() -> None:
    worker = ready()
    worker.apply(Tick(), 20)
    for _ in range(10):
        worker.failing()
        worker.failing()
        worker.healthy(1)

    assert worker.life.state is WorkerState.READY


def test_failed_probes_do_not_kill_within_the_grace_after_ready() -> None:
    worker = ready()
    for _ in range(9):
        assert worker.failing(1) == []

    assert worker.failing(1) == [Signal(1, KILL)]


def test_undecided_probes_do_not_kill_a_worker() -> None:
    worker = ready()
    for _ in range(100):
        worker.apply(Probed(1, Health.UNDECIDED, "the probe itself failed"), 1)

    assert worker.life.state is WorkerState.READY


def test_time_without_possible_probes_does_not_count_towards_a_hang() -> None:
    worker = ready(replace(POLICY, hang_probes=7))
    worker.apply(Tick(), 20)
    worker.failing(2, took_seconds=2)
    worker.failing(2, took_seconds=2)
    worker.apply(Probed(1, Health.UNDECIDED, "no thread"), 60)

    assert worker.failing(1, took_seconds=1) == []
    assert worker.failing(3, took_seconds=3) == []
    assert worker.failing(2, took_seconds=2) == [Signal(1, KILL)]


def test_a_working_worker_is_never_killed_for_failed_probes() -> None:
    worker = ready()
    worker.apply(Tick(), 20)
    for _ in range(100):
        assert worker.failing(2, took_seconds=2, worked=True) == []

    assert (worker.life.state, worker.life.up) == (WorkerState.READY, False)
    said = "not healthy: no answer in time", "it does its work and is left alone"
    assert tuple(worker.notes[-2:]) == said


def test_a_hang_is_counted_from_the_last_observed_work() -> None:
    worker = ready()
    worker.apply(Tick(), 20)
    worker.failing(1)
    worker.failing(1)
    worker.failing(1, took_seconds=1, worked=True)
    assert worker.failing(1) == worker.failing(1) == []

    assert worker.failing(1) == [Signal(1, KILL)]


def test_work_before_a_failed_probe_does_not_prevent_a_kill() -> None:
    worker = ready()
    worker.apply(Tick(), 20)
    worked_ns = worker.now_ns
    for wanted in ([], [], [Signal(1, KILL)]):
        probed = Probed(1, Health.NO_ANSWER, "silent", worker.now_ns + S // 2, worked_ns)
        assert worker.apply(probed, 1) == wanted


def test_work_of_a_foreign_process_on_the_port_does_not_prevent_a_kill() -> None:
    worker = ready()
    worker.apply(Tick(), 20)
    for wanted in ([], [], [Signal(1, KILL)]):
        ahead_ns = worker.now_ns + 9 * S
        probed = Probed(1, Health.FOREIGN, "another process listens", worker.now_ns, ahead_ns)
        assert worker.apply(probed, 1) == wanted


def test_slow_probes_detect_a_hang_as_soon_as_quick_ones() -> None:
    policy = replace(POLICY, hang_probes=7)
    worker = ready(policy)
    worker.apply(Tick(), 20)

    assert worker.failing(2, took_seconds=2) == worker.failing(2, took_seconds=2) == []
    assert worker.failing(2, took_seconds=2) == [Signal(1, KILL)]


def test_two_slow_failed_probes_do_not_kill_a_worker() -> None:
    worker = ready(replace(POLICY, hang_probes=7))
    worker.apply(Tick(), 20)

    assert worker.failing(60, took_seconds=60) == worker.failing(60, took_seconds=60) == []


def test_up_is_the_result_of_the_last_probe() -> None:
    worker = started()
    seen = [worker.life.up]
    worker.healthy(5)
    seen.append(worker.life.up)
    worker.failing()
    seen.append(worker.life.up)
    worker.apply(Probed(1, Health.UNDECIDED, "the probe itself failed"), 1)
    seen.append(worker.life.up)
    worker.healthy(1)
    seen.append(worker.life.up)
    resumed(worker, Presence.RUNNING)
    seen.append(worker.life.up)

    assert seen == [None, True, False, None, True, None]


@pytest.mark.parametrize("served", [False, True])
def test_a_start_is_not_given_up_during_observed_work_or_undecided_probes(
    served: bool,
) -> None:
    worker = ready() if served else started()
    if served:
        resumed(worker, Presence.RUNNING)
    for _ in range(200):
        assert worker.failing(1, took_seconds=1, worked=True) == []
    for _ in range(200):
        assert worker.apply(Probed(1, Health.UNDECIDED, "no thread"), 1) == []

    assert worker.life.state is WorkerState.STARTING
    assert worker.failing(POLICY.resume_seconds - 1) == []
    assert worker.apply(Tick(), 1) == [Signal(1, TERM)]


def test_unwatched_time_counts_towards_no_deadline_and_no_hang() -> None:
    adopted = ready()
    resumed(adopted, Presence.RUNNING)
    assert adopted.apply(Unwatched(), 3600) == []
    serving = ready()
    serving.apply(Tick(), 20)
    serving.failing()
    serving.failing()
    serving.apply(Unwatched(), 3600)

    assert serving.failing() == []
    assert (adopted.life.state, serving.life.state) == (WorkerState.STARTING, WorkerState.READY)


def test_a_start_refused_by_the_system_is_no_crash_and_is_always_retried() -> None:
    worker = started()
    waits = []
    for number in range(1, 101):
        worker.apply(StartFailed(number, "cannot write the log", refused=True))
        due = due_ns(worker.life, POLICY)
        assert due is not None
        waits.append((due - worker.now_ns) / S)
        assert worker.apply(Tick(), waits[-1]) == [Start(number + 1)]

    assert waits[:6] == [1, 2, 4, 8, 8, 8]
    assert (worker.life.restarts, worker.life.consecutive_crashes, worker.life.crashes_ns) == (
        0,
        0,
        (),
    )
    assert "cannot write the log, not counted as a crash, tried again in 8.0 s" in worker.notes


def test_a_worker_whose_starts_are_refused_has_waited_since_the_first() -> None:
    worker = ready()
    worker.exits(-9, 100)
    crashed_ns = worker.now_ns
    for _ in range(10):
        due = due_ns(worker.life, POLICY)
        assert due is not None
        [start] = worker.apply(Tick(), (due - worker.now_ns) / S)
        assert isinstance(start, Start)
        assert worker.life.since_ns == worker.now_ns, "its deadline counts from the start"
        refusal = StartFailed(start.generation, "its port is taken", True, start.since_ns)
        worker.apply(refusal)

    assert worker.life.state is WorkerState.BACKOFF
    assert worker.life.since_ns == crashed_ns


def test_a_refused_start_is_retried_after_a_pause_even_without_back_off() -> None:
    worker = started(replace(POLICY, backoff_first_seconds=0, backoff_max_seconds=0))

    assert worker.apply(StartFailed(1, "no process left", refused=True)) == []
    assert worker.apply(Tick(), 0.5) == [Start(2)]


def test_a_journaled_start_that_was_not_executed_is_no_crash() -> None:
    worker = ready()
    worker.exits(1, 5)
    worker.apply(Tick(), 1)
    before = worker.life

    unmade = Resumed(2, Presence.GONE, started=False)
    assert worker.apply(unmade, 3) == [Start(3)]
    life = worker.life
    assert (life.restarts, life.consecutive_crashes, life.crashes_ns) == (1, 1, before.crashes_ns)


def test_a_failed_worker_is_retried_after_the_configured_interval() -> None:
    worker = started(replace(POLICY, crash_limit=2, failed_retry_seconds=300))
    worker.exits()
    worker.apply(Tick(), 1)
    worker.exits()
    assert worker.notes[-1].endswith("given up after 2 crashes, tried again after 300 s")
    assert worker.apply(Tick(), 299.9) == []
    assert worker.apply(Tick(), 0.1) == [Start(3)]

    worker.exits()
    assert worker.life.state is WorkerState.FAILED
    worker.apply(Tick(), 300)
    worker.healthy(5)
    assert (worker.life.state, worker.life.restarts) == (WorkerState.READY, 3)


def test_unhealthy_probes_do_not_end_a_start_before_its_deadline() -> None:
    worker = started()
    for _ in range(99):
        assert worker.failing(1) == []

    assert worker.life.state is WorkerState.STARTING


def test_a_repeated_probe_failure_is_noted_once() -> None:
    worker = started()
    before = len(worker.notes)
    for _ in range(50):
        worker.apply(Probed(1, Health.UNHEALTHY, "/health answers 503"), 1)

    assert worker.notes[before:] == ["not healthy: /health answers 503"]


def test_a_missing_answer_of_a_starting_worker_is_noted_only_if_it_served_before() -> None:
    worker = started()
    before = len(worker.notes)
    worker.failing(1)
    assert worker.notes[before:] == []
    assert worker.life.probe_why == "no answer in time"

    adopted = started()
    adopted.life = replace(adopted.life, served=True)
    adopted.failing(1)
    assert adopted.notes[-1] == "not healthy: no answer in time"


def test_a_ready_worker_is_drained_before_it_is_terminated() -> None:
    worker = ready()

    assert worker.apply(StopRequested()) == []
    assert worker.life.state is WorkerState.DRAINING
    assert worker.apply(Drained(1), 3) == [Signal(1, TERM)]
    assert worker.exits(0, 1) == []
    assert worker.life.state is WorkerState.STOPPED
    assert worker.life.crashes_ns == ()


def test_a_drain_and_a_stop_past_their_deadlines_end_in_a_kill() -> None:
    worker = ready()
    worker.apply(StopRequested())

    assert worker.apply(Tick(), 29.9) == []
    assert worker.apply(Tick(), 0.1) == [Signal(1, TERM)]
    assert worker.apply(Tick(), 9.9) == []
    assert worker.apply(Tick(), 0.1) == [Signal(1, KILL)]
    assert worker.apply(Tick(), 10) == [Signal(1, KILL)]
    worker.exits(-9)
    assert worker.life.state is WorkerState.STOPPED


def test_a_stop_without_drain_terminates_a_draining_worker_at_once() -> None:
    worker = ready()
    worker.apply(StopRequested())

    assert worker.apply(StopRequested()) == []
    assert worker.apply(StopRequested(drain=False)) == [Signal(1, TERM)]
    assert worker.apply(StopRequested(drain=False)) == []


def test_a_starting_worker_is_stopped_without_a_drain() -> None:
    worker = started()

    assert worker.apply(StopRequested()) == [Signal(1, TERM)]
    assert worker.life.state is WorkerState.DRAINING


def test_a_stop_overrides_the_restart_after_a_crash_or_a_hang() -> None:
    waiting = ready()
    waiting.exits()
    waiting.apply(StopRequested())
    assert waiting.life.state is WorkerState.STOPPED
    assert waiting.apply(Tick(), 1000) == []

    hanging = ready()
    hanging.apply(Tick(), 20)
    for _ in range(3):
        hanging.failing()
    hanging.apply(StopRequested())
    assert hanging.exits(-9, 5) == []
    assert hanging.life.state is WorkerState.STOPPED


def test_a_crash_while_draining_ends_in_stopped() -> None:
    worker = ready()
    worker.apply(StopRequested())
    worker.exits(-11)

    assert worker.life.state is WorkerState.STOPPED


def test_a_start_request_during_a_stop_is_refused_and_noted() -> None:
    worker = ready()
    worker.apply(StopRequested())

    assert worker.apply(StartRequested()) == []
    assert worker.notes[-1] == "start refused: it is being stopped"


def test_a_repeated_start_request_changes_nothing() -> None:
    starting, serving, waiting = started(), ready(), ready()
    waiting.exits()

    for worker in (starting, serving, waiting):
        before = worker.life
        assert worker.apply(StartRequested()) == []
        assert worker.life == before


def test_leftover_processes_of_a_dead_leader_end_before_the_next_start() -> None:
    worker = ready()

    assert worker.apply(Exited(1, -9, alone=False)) == [Signal(1, TERM)]
    assert worker.life.state is WorkerState.BACKOFF
    assert worker.apply(Tick(), 1) == [Signal(1, KILL)]
    assert worker.apply(Tick(), 1) == []
    assert worker.apply(Gone(1)) == [Start(2)]


def test_leftover_processes_after_a_kill_are_killed_at_once() -> None:
    worker = ready()
    worker.apply(StopRequested(drain=False))
    worker.apply(Tick(), 10)

    assert worker.apply(Exited(1, -9, alone=False)) == [Signal(1, KILL)]
    worker.apply(Gone(1))
    assert worker.life.state is WorkerState.STOPPED


def test_events_of_an_older_incarnation_change_nothing() -> None:
    worker = ready()
    worker.exits()
    worker.apply(Tick(), 1)
    worker.healthy(1)
    now = worker.life

    for late in (
        Exited(1, 0, alone=True),
        Exited(1, 0, alone=False),
        Gone(1),
        Drained(1),
        StartFailed(1, "late"),
        Probed(1, Health.NO_ANSWER, "late"),
    ):
        assert worker.apply(late) == []
    assert worker.life == now


def resumed(
    worker: DecidedWorker, found: Presence, after_seconds: float = 0
) -> list[Start | Signal]:
    return worker.apply(Resumed(worker.life.generation, found), after_seconds)


def test_a_new_daemon_probes_a_running_worker_and_does_not_restart_it() -> None:
    worker = started()
    worker.healthy(5)

    assert resumed(worker, Presence.RUNNING, 1000) == []
    assert worker.life.state is WorkerState.STARTING
    worker.healthy(1)
    assert worker.life.state is WorkerState.READY
    assert (worker.life.restarts, worker.life.crashes_ns, worker.life.served) == (0, (), False)


def test_a_resumed_worker_that_served_before_gets_only_the_resume_deadline() -> None:
    worker = started()
    worker.healthy(5)
    resumed(worker, Presence.RUNNING, 1000)

    assert worker.apply(Tick(), POLICY.resume_seconds - 1) == []
    assert worker.apply(Tick(), 1) == [Signal(1, TERM)]
    assert "not ready within 30 s" in worker.notes[-1]


def test_a_resumed_starting_worker_gets_the_full_start_deadline() -> None:
    worker = started()

    assert resumed(worker, Presence.RUNNING, 1000) == []
    assert worker.apply(Tick(), POLICY.start_seconds - 1) == []
    assert worker.life.state is WorkerState.STARTING


def test_a_new_daemon_cancels_an_interrupted_drain() -> None:
    worker = started()
    worker.healthy(5)
    worker.apply(StopRequested())

    assert resumed(worker, Presence.RUNNING) == []
    worker.healthy(1)
    assert worker.life.state is WorkerState.READY


def test_a_new_daemon_completes_an_interrupted_stop_and_restarts_the_worker() -> None:
    worker = started()
    worker.apply(StopRequested())
    assert worker.life.last_signal is TERM

    assert resumed(worker, Presence.RUNNING, 5) == [Signal(1, TERM)]
    assert worker.apply(Tick(), POLICY.stop_seconds) == [Signal(1, KILL)]
    assert worker.exits(-9) == [Start(2)]
    assert (worker.life.restarts, worker.life.crashes_ns) == (0, ())


@pytest.mark.parametrize("found", [Presence.RUNNING, Presence.LEFTOVER])
def test_a_restart_after_an_interrupted_stop_clears_the_crashes(found: Presence) -> None:
    """As if it had been stopped in time and started by that daemon."""
    policy = replace(POLICY, crash_limit=1)
    worker = started(policy)
    worker.apply(Tick(), policy.start_seconds)
    assert worker.life.state is WorkerState.FAILED
    worker.apply(StopRequested())
    assert worker.life.state is WorkerState.DRAINING

    assert resumed(worker, found, 5) == [Signal(1, TERM)]
    ended = Gone(1) if found is Presence.LEFTOVER else Exited(1, -15, alone=True)
    assert worker.apply(ended) == [Start(2)]
    assert (worker.life.consecutive_crashes, worker.life.crashes_ns, worker.life.restarts) == (
        0,
        (),
        0,
    )


def test_an_exit_while_no_daemon_ran_counts_as_a_crash() -> None:
    worker = started()
    worker.healthy(5)

    assert resumed(worker, Presence.GONE, 10) == []
    assert worker.life.state is WorkerState.BACKOFF
    assert worker.notes[-1] == "ended while no daemon ran, next start in 1.0 s"
    assert worker.apply(Tick(), 1) == [Start(2)]
    assert worker.life.restarts == 1


def test_processes_left_while_no_daemon_ran_end_before_the_next_start() -> None:
    worker = started()
    worker.healthy(5)

    assert resumed(worker, Presence.LEFTOVER, 10) == [Signal(1, TERM)]
    assert worker.apply(Tick(), 1) == [Signal(1, KILL)]
    assert worker.apply(Gone(1)) == [Start(2)]


def test_back_off_and_failed_state_survive_a_daemon_restart() -> None:
    worker = started()
    worker.exits(1)
    assert resumed(worker, Presence.GONE, 0.5) == []
    assert worker.apply(Tick(), 0.5) == [Start(2)]

    while worker.life.state is not WorkerState.FAILED:
        worker.exits(1)
        worker.apply(Tick(), 8)
    assert resumed(worker, Presence.GONE, 1000) == []
    assert worker.life.state is WorkerState.FAILED


def test_without_back_off_the_next_start_is_in_the_same_decision() -> None:
    worker = ready(replace(POLICY, backoff_first_seconds=0))

    assert worker.exits(-9) == [Start(2)]
    assert (worker.life.state, worker.life.restarts) == (WorkerState.STARTING, 1)


@given(
    consecutive_crashes=st.integers(0, 10_000),
    jitter=st.floats(0, 1),
    first=st.floats(0, 100),
    factor=st.floats(1, 100),
    most=st.floats(0, 1000),
    ratio=st.floats(0, 1),
)
def test_a_back_off_is_never_negative_and_never_above_its_maximum(
    consecutive_crashes: int, jitter: float, first: float, factor: float, most: float, ratio: float
) -> None:
    policy = RestartPolicy(
        backoff_first_seconds=first,
        backoff_factor=factor,
        backoff_max_seconds=most,
        backoff_jitter_ratio=ratio,
    )

    assert 0 <= backoff_seconds(consecutive_crashes, policy, jitter) <= most


@given(
    crash_limit=st.integers(1, 8),
    codes=st.lists(st.sampled_from([0, 1, -9, None]), min_size=8, max_size=8),
    seconds=st.lists(st.floats(0, 99), min_size=8, max_size=8),
)
def test_a_worker_that_never_becomes_ready_is_failed_after_exactly_the_limit(
    crash_limit: int, codes: list[int | None], seconds: list[float]
) -> None:
    worker = started(replace(POLICY, crash_limit=crash_limit))
    starts = 0
    for code, after_seconds in zip(codes, seconds, strict=True):
        if worker.life.state is WorkerState.FAILED:
            break
        starts += 1
        worker.exits(code, after_seconds)
        worker.apply(Tick(), 8)

    assert worker.life.state is WorkerState.FAILED
    assert starts == crash_limit


_UNSURE = (Health.NO_ANSWER, Health.UNDECIDED)


class AnyOrder(RuleBasedStateMachine):
    """A worker with real processes behind it, whose news arrive late, twice or out of order."""

    @initialize(
        limit=st.integers(1, 4),
        first=st.sampled_from([0.0, 1.0]),
        stop=st.sampled_from([0.0, 10.0]),
        retry=st.sampled_from([0.0, 300.0]),
    )
    def begin(self, limit: int, first: float, stop: float, retry: float) -> None:
        self.policy = replace(
            POLICY,
            crash_limit=limit,
            backoff_first_seconds=first,
            stop_seconds=stop,
            failed_retry_seconds=retry,
        )
        self.life = Lifecycle()
        self.now_ns = 0
        self.wanted = False
        self.leader: int | None = None  # the generation whose leader lives
        self.others: int | None = None  # the generation of which others live
        self.mail: list[Event] = []
        self.delivered: list[Event] = []

    def apply(self, event: Event, jitter: float = 0.5) -> None:
        before = self.life
        decision = decide(before, event, self.now_ns, self.policy, jitter)
        self.life = decision.life
        if is_frozen(self.life):
            assert decision.actions == (), "something was done about a paused worker"
        for action in decision.actions:
            if isinstance(action, Start):
                assert self.wanted, "started though a stop was asked for"
                retried = before.since_ns + self.policy.failed_retry_seconds * S <= self.now_ns
                asked = isinstance(event, StartRequested | RestartRequested)
                retries = self.policy.failed_retry_seconds > 0 and retried
                assert before.state is not WorkerState.FAILED or asked or retries
                assert (self.leader, self.others) == (None, None), "two at a time"
                assert action.generation == before.generation + 1
                self.leader = action.generation
            else:
                assert action.generation == before.generation
                assert action.signal in (signal.SIGTERM, signal.SIGKILL)
        if self.life.crashes_ns[-1:] != before.crashes_ns[-1:] and self.life.crashes_ns:
            wait_ns = self.life.retry_ns - self.now_ns
            assert wait_ns <= self.policy.backoff_max_seconds * S

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 7.0, 61.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)
        self.apply(Tick())

    @rule()
    def the_next_deadline_comes(self) -> None:
        due = due_ns(self.life, self.policy)
        assume(due is not None)
        assert due is not None
        self.now_ns = max(self.now_ns, due)
        self.apply(Tick())

    @rule()
    def a_start_is_asked_for(self) -> None:
        self.wanted = self.wanted or self.life.state is not WorkerState.DRAINING
        self.apply(StartRequested())

    @rule(drain=st.booleans())
    def a_stop_is_asked_for(self, drain: bool) -> None:
        self.wanted = False
        self.apply(StopRequested(drain))
        assert self.life.state in (WorkerState.STOPPED, WorkerState.DRAINING)

    @rule(drain=st.booleans())
    def a_restart_is_asked_for(self, drain: bool) -> None:
        self.wanted = self.wanted or restart_refusal(self.life) is None
        self.apply(RestartRequested(drain))

    @rule()
    def a_pause_is_asked_for(self) -> None:
        self.apply(PauseRequested())

    @rule()
    def its_end_is_asked_for(self) -> None:
        self.apply(UnpauseRequested())
        assert self.life.paused_ns is None

    @precondition(lambda self: self.leader is not None)
    @rule(code=st.sampled_from([0, 1, -9, None]), alone=st.booleans())
    def the_leader_dies(self, code: int | None, alone: bool) -> None:
        assert self.leader is not None
        self.mail.append(Exited(self.leader, code, alone))
        self.others = None if alone else self.leader
        self.leader = None

    @precondition(lambda self: self.leader == self.life.generation)
    @rule(refused=st.booleans())
    def the_start_turns_out_to_have_failed(self, refused: bool) -> None:
        assert self.leader is not None
        self.mail.append(StartFailed(self.leader, "no such program", refused))
        self.leader = None

    @precondition(lambda self: self.others is not None and not self.mail)
    @rule()
    def the_others_die(self) -> None:
        assert self.others is not None
        self.mail.append(Gone(self.others))
        self.others = None

    @precondition(lambda self: self.mail)
    @rule(which=st.integers(0, 10), jitter=st.floats(0, 1))
    def news_arrive(self, which: int, jitter: float) -> None:
        event = self.mail.pop(which % len(self.mail))
        self.delivered.append(event)
        self.apply(event, jitter)

    @precondition(lambda self: self.delivered)
    @rule(which=st.integers(0, 100))
    def old_news_arrive_again(self, which: int) -> None:
        self.apply(self.delivered[which % len(self.delivered)])

    @rule(health=st.sampled_from(list(Health)), back=st.integers(0, 2))
    def a_probe_comes_back(self, health: Health, back: int) -> None:
        self.apply(Probed(self.life.generation - back, health, health.value))

    @rule(seconds=st.sampled_from([0.0, 2.0, 700.0]), health=st.sampled_from([*_UNSURE]))
    def a_probe_fails_while_it_works_or_none_can_be_made(
        self, seconds: float, health: Health
    ) -> None:
        """In any state: neither case terminates the worker."""
        began_ns = self.now_ns
        self.now_ns += round(seconds * S)
        if self.life.state is WorkerState.STARTING:
            self.apply(Unwatched())
        before = self.life
        work_ns = self.now_ns + 1 if health is Health.NO_ANSWER else None
        self.apply(Probed(before.generation, health, "", began_ns, work_ns))
        if before.state in (WorkerState.STARTING, WorkerState.READY):
            assert (self.life.state, self.life.last_signal) == (before.state, None)

    @rule(back=st.integers(0, 2))
    def it_is_drained(self, back: int) -> None:
        self.apply(Drained(self.life.generation - back))

    @rule()
    def another_daemon_takes_over(self) -> None:
        """Events that the previous daemon has not received are lost."""
        self.mail.clear()
        self.delivered.clear()
        self.wanted = True
        others = Presence.GONE if self.others is None else Presence.LEFTOVER
        found = others if self.leader is None else Presence.RUNNING
        self.apply(Resumed(self.life.generation, found))
        if self.life.state is WorkerState.STOPPED:
            self.apply(StartRequested())
        assert self.life.restarting or self.life.state is not WorkerState.DRAINING

    @invariant()
    def the_life_makes_sense(self) -> None:
        life, limit = self.life, self.policy.crash_limit
        assert life.consecutive_crashes <= limit
        assert len(life.crashes_ns) <= limit
        assert 0 <= life.restarts < max(life.generation, 1)
        if self.wanted:
            self.it_is_not_dead_for_ever()
        if life.state is WorkerState.STOPPED:
            assert (life.presence, self.leader, self.others) == (Presence.GONE, None, None)
        if life.state in (WorkerState.STARTING, WorkerState.READY):
            assert life.presence is Presence.RUNNING
            assert life.last_signal is None
            assert life.consecutive_crashes < limit or self.policy.failed_retry_seconds > 0
        assert not life.restarting or life.state is WorkerState.DRAINING
        if (
            life.presence is not Presence.GONE
            and life.last_signal is not None
            and not is_frozen(life)
        ):
            assert due_ns(life, self.policy) is not None

    def it_is_not_dead_for_ever(self) -> None:
        """Time alone, or news of its process, will do something about a wanted worker."""
        life = self.life
        given_up = life.state is WorkerState.FAILED and not self.policy.failed_retry_seconds
        watched = life.presence is not Presence.GONE
        waits = watched or given_up or is_frozen(life)
        assert waits or due_ns(life, self.policy) is not None

    def teardown(self) -> None:
        """However it stands, a stop ends, even if nothing dies but by SIGKILL."""
        self.wanted = False
        self.apply(StopRequested())
        begin_ns = self.now_ns
        while self.life.state is not WorkerState.STOPPED:
            assert self.now_ns - begin_ns <= (30 + 10 + 10 + 1) * S
            if self.life.last_signal is KILL and self.leader is not None:
                self.the_leader_dies(-9, alone=False)
            elif self.life.last_signal is KILL and self.others is not None and not self.mail:
                self.the_others_die()
            while self.mail:
                self.apply(self.mail.pop(0))
            due = due_ns(self.life, self.policy)
            if due is not None and self.life.state is not WorkerState.STOPPED:
                self.now_ns = max(self.now_ns, due)
                self.apply(Tick())


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
