"""Changes are made one at a time and each once, however often and in which order they are asked."""

from copy import copy
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.control.changes import REMEMBERED, Changes, advance, handle
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    PauseWorkers,
    ReassignWorker,
    ReplyOutcome,
    RestartWorker,
    ResumeWorkers,
    Verb,
)
from disagg_cluster.control.views import DaemonView, NodeOverview, RoleConstraints, WorkerView
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role

S = 1_000_000_000
DAEMON = DaemonView("1.0", 1, "node", "/run/x", 1.0)
A = WorkerView("a", WorkerState.READY, 1, pid=7, restart_seconds=60.0)
B = WorkerView("b", WorkerState.READY, 1, pid=8, restart_seconds=60.0)
NODE = NodeOverview(DAEMON, (A, B))
DRAINING = replace(A, state=WorkerState.DRAINING, restarting=True)
STARTING = replace(A, state=WorkerState.STARTING, incarnation=2, pid=9)
ANEW = replace(A, incarnation=2, pid=9)


class Asked:
    """A node that is asked for one thing after the other."""

    def __init__(self, constraints: RoleConstraints = NODE.constraints) -> None:
        self.changes = Changes()
        self.node = replace(NODE, constraints=constraints)
        self.now_ns = 0
        self.orders: list[tuple[str, ...]] = []

    def ask(self, id: str, verb: Verb, **settings: object) -> ControlReply | None:
        handled = handle(self.changes, ControlRequest(id, verb, **settings), self.node, self.now_ns)  # type: ignore[arg-type]
        self.changes = handled.changes
        if handled.orders is not None and handled.orders.workers:
            self.orders.append(handled.orders.workers)
        return handled.reply

    def see(self, worker: WorkerView, after_seconds: float = 0) -> ControlReply | None:
        self.now_ns += round(after_seconds * S)
        self.node = replace(self.node, workers=(worker, B))
        self.changes, reply = advance(self.changes, self.node, self.now_ns)
        return reply


def texts(asked: Asked, *workers: WorkerView) -> list[str]:
    return [reply.text for worker in workers if (reply := asked.see(worker))]


def test_a_restart_reports_each_step_once_and_is_done_when_the_worker_is_ready() -> None:
    asked = Asked()

    assert asked.ask("1", RestartWorker("a")) is None
    assert texts(asked, DRAINING, DRAINING, STARTING, STARTING) == [
        "a: draining",
        "a: starting (pid 9)",
    ]
    done = asked.see(ANEW, after_seconds=4)
    assert done is not None
    assert (done.outcome, done.text) == (ReplyOutcome.DONE, "a: ready after 4.0 s")
    assert asked.changes.running is None


def test_a_restart_is_done_when_the_router_sends_the_worker_requests_again() -> None:
    """Whoever then restarts its only peer leaves users an engine."""
    asked = Asked(RoleConstraints(membership="live"))
    anew = replace(ANEW, role="prefill")

    asked.ask("1", RestartWorker("a"))
    waiting = asked.see(anew)
    assert waiting is not None
    assert waiting.text == "a: ready, waits until the router sends it requests"
    for known in ({"routed_as": "prefill"}, {"routed_as": "unknown"}, {"drained": True}):
        done = copy(asked).see(replace(anew, **known), after_seconds=4)
        assert done is not None
        assert done.text == "a: ready after 4.0 s"
    # A router that never takes it holds up no other change for long.
    late = asked.see(replace(anew, state_seconds=15.0))
    assert late is not None
    assert late.outcome is ReplyOutcome.TIMEOUT
    assert late.text == "a: ready, but for 15 s the router has sent it no requests"
    assert asked.changes.running is None


def test_a_change_that_cannot_be_written_down_is_answered_with_that_doubt() -> None:
    full = "cannot write the journal: No space left on device"
    asked = Asked()
    asked.node = replace(NODE, daemon=replace(DAEMON, unwritten=full))

    asked.ask("1", RestartWorker("a"))
    done = asked.see(ANEW, after_seconds=4)
    assert done is not None
    assert done.text == f"a: ready after 4.0 s; the next daemon would not know of it: {full}"
    # There may be room when it is asked for again.
    again = asked.ask("1", RestartWorker("a"))
    assert again is not None
    assert again.text == "a: ready after 4.0 s"


def test_a_repeated_request_id_orders_one_restart_during_and_after_it() -> None:
    asked = Asked()
    for _ in range(3):
        assert asked.ask("1", RestartWorker("a")) is None
    asked.see(ANEW)
    again = asked.ask("1", RestartWorker("a"))

    assert asked.orders == [("a",)]
    assert again is not None
    assert again.outcome is ReplyOutcome.DONE


def test_another_request_for_the_restart_under_way_joins_it() -> None:
    asked = Asked()
    asked.ask("1", RestartWorker("a"))
    assert asked.ask("2", RestartWorker("a")) is None
    asked.see(ANEW)

    done = asked.ask("2", RestartWorker("a"))
    assert done is not None
    assert (done.id, done.outcome) == ("2", ReplyOutcome.DONE)
    assert asked.ask("3", RestartWorker("a")) is None


def test_another_restart_is_refused_during_a_restart() -> None:
    asked = Asked()
    asked.ask("1", RestartWorker("a"))
    refused = asked.ask("2", RestartWorker("b"))

    assert refused is not None
    assert refused.outcome is ReplyOutcome.REFUSED
    assert refused.text.startswith("restart a is under way")
    asked.see(ANEW)
    assert asked.ask("2", RestartWorker("b")) is None


def test_a_request_id_reused_for_another_change_is_refused() -> None:
    asked = Asked()
    asked.ask("1", RestartWorker("a"))
    asked.ask("2", PauseWorkers("b"))

    for id, verb in (("1", RestartWorker("a", drain=False)), ("2", ResumeWorkers("b"))):
        refused = asked.ask(id, verb)
        assert refused is not None
        assert refused.outcome is ReplyOutcome.REFUSED
    assert asked.orders == [("a",), ("b",)]


def test_a_refused_request_may_be_repeated_later_with_the_same_id() -> None:
    asked = Asked()
    asked.node = NodeOverview(DAEMON, (replace(A, paused_seconds=1.0), B))
    refused = asked.ask("1", RestartWorker("a"))
    assert refused is not None
    assert refused.outcome is ReplyOutcome.REFUSED

    asked.node = NODE
    assert asked.ask("1", RestartWorker("a")) is None


def test_a_request_without_waiting_is_answered_as_accepted() -> None:
    asked = Asked()

    accepted = asked.ask("1", RestartWorker("a"), wait=False)
    assert accepted is not None
    assert accepted.outcome is ReplyOutcome.ACCEPTED
    assert asked.changes.running is not None


def test_a_restart_past_its_time_limit_is_reported_as_timed_out() -> None:
    asked = Asked()
    asked.ask("1", RestartWorker("a"), deadline_seconds=5.0)
    # Past the deadline of the request, the restart still blocks another one.
    assert asked.see(STARTING, after_seconds=89.9) is not None
    refused = asked.ask("2", RestartWorker("b"))
    assert refused is not None
    assert refused.outcome is ReplyOutcome.REFUSED

    late = asked.see(STARTING, after_seconds=0.1)
    assert late is not None
    assert late.outcome is ReplyOutcome.TIMEOUT
    assert asked.changes.running is None


def test_a_cancelled_or_failed_restart_is_reported_as_failed_with_the_reason() -> None:
    endings = {
        "called off by a pause": replace(A, paused_seconds=0.0),
        "called off by a stop": replace(A, state=WorkerState.DRAINING),
        "failed, given up": replace(ANEW, state=WorkerState.FAILED, reason="given up"),
    }
    for words, worker in endings.items():
        asked = Asked()
        asked.ask("1", RestartWorker("a"))
        ended = asked.see(worker)
        assert ended is not None
        assert ended.outcome is ReplyOutcome.FAILED
        assert words in ended.text


def test_the_way_out_of_a_failed_restart_names_the_command_that_shows_the_log() -> None:
    asked = Asked()
    asked.ask("1", RestartWorker("a"))

    ended = asked.see(replace(ANEW, state=WorkerState.FAILED, reason="given up"))

    assert ended is not None
    assert ended.way_out == "disagg-node logs a shows what it printed"


def test_a_restart_whose_worker_crashes_goes_on_and_reports_the_reason() -> None:
    asked = Asked()
    asked.ask("1", RestartWorker("a"))
    crashed = replace(ANEW, state=WorkerState.BACKOFF, pid=None, reason="ended with exit code 1")

    assert texts(asked, crashed) == ["a: waits for its next start: ended with exit code 1"]
    assert asked.changes.running is not None


VERBS = st.sampled_from(
    [
        RestartWorker("a"),
        RestartWorker("b"),
        RestartWorker("a", drain=False),
        PauseWorkers("a"),
        PauseWorkers(),
        ResumeWorkers(),
    ]
)
STATES = st.sampled_from([A, DRAINING, STARTING, ANEW, replace(A, paused_seconds=1.0)])


@given(
    st.lists(
        st.tuples(st.sampled_from("123456"), VERBS, st.booleans(), STATES, st.integers(0, 40)),
        max_size=40,
    )
)
def test_in_any_sequence_of_requests_one_change_runs_and_each_id_orders_once(
    story: list[tuple[str, Verb, bool, WorkerView, int]],
) -> None:
    asked = Asked()
    ordered: list[str] = []
    for id, verb, wait, worker, seconds in story:
        before, count = asked.changes.running, len(asked.orders)
        reply = asked.ask(id, verb, wait=wait)
        running = asked.changes.running
        if len(asked.orders) > count:
            ordered.append(id)
            assert reply is None or reply.outcome in (ReplyOutcome.DONE, ReplyOutcome.ACCEPTED)
        if before is not None and running is not None:
            assert running.verb.worker == before.verb.worker
        assert (reply is None) == (reply is None and wait and running is not None)
        asked.see(worker, seconds)

    assert len(ordered) == len(set(ordered))
    assert len(asked.changes.answered) <= REMEMBERED


def test_a_dry_run_is_refused_for_the_same_reason_as_the_move() -> None:
    asked = Asked()
    asked.node = replace(NODE, workers=(replace(A, role="decode"), replace(B, role="decode")))
    rehearsal = ReassignWorker("b", Role.PREFILL, dry_run=True)

    assert asked.ask("1", rehearsal) is not None
    asked.ask("2", RestartWorker("a"))
    for number, verb in enumerate((rehearsal, replace(rehearsal, dry_run=False))):
        reply = asked.ask(f"3{number}", verb)
        assert reply is not None
        assert (reply.reason, reply.text) == (
            "change_under_way",
            "restart a is under way, for 0 s",
        )
