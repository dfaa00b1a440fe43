"""A move is begun once however often it is asked for, also by a daemon that did not begin it."""

from dataclasses import replace

import pytest

from disagg_cluster.control.changes import Changes, Handled, advance, handle
from disagg_cluster.control.explanation import explain
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    DrainWorker,
    ReassignWorker,
    ReplyOutcome,
    RestartWorker,
    Verb,
)
from disagg_cluster.control.views import DaemonView, NodeOverview, RoleConstraints, WorkerView
from disagg_cluster.lifecycle.reassignment.progress import MoveStep, Patience, Reassignment
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role

S = 1_000_000_000
DAEMON = DaemonView("1.0", 1, "node", "/run/x", 1.0)
D0, D1 = (
    WorkerView(name, WorkerState.READY, 1, role="decode", model_name="m", drain_seconds=30.0)
    for name in ("d0", "d1")
)
LIVE = RoleConstraints(membership="live")
NODE = NodeOverview(DAEMON, (D0, D1), constraints=LIVE)
VERB = ReassignWorker("d0", Role.PREFILL)
MOVE = Reassignment("1", "d0", Role.DECODE, Role.PREFILL, 0, 0, Patience())


def ask(changes: Changes, node: NodeOverview, id: str = "1", verb: Verb = VERB) -> Handled:
    return handle(changes, ControlRequest(id, verb), node, S)


def ended(step: MoveStep, why: str = "") -> Reassignment:
    seconds = {"drain_seconds": 1.5, "downtime_seconds": 20.0, "effect_seconds": 0.75}
    return replace(MOVE, step=step, why=why, **seconds)


def seen(changes: Changes, move: Reassignment) -> ControlReply | None:
    return advance(changes, replace(NODE, move=move), 2 * S)[1]


def test_a_move_reports_each_step_and_is_done_when_it_is_proven() -> None:
    begun = ask(Changes(), NODE)
    assert begun.reply is None
    changes, step = advance(begun.changes, replace(NODE, move=MOVE), 2 * S)
    assert step is not None
    assert step.text == (
        "d0: leaving: waits until the router sends it nothing new any more, 15 s at most"
    )
    assert advance(changes, replace(NODE, move=MOVE), 3 * S)[1] is None

    done = seen(changes, ended(MoveStep.DONE))

    assert done is not None
    assert (done.outcome, done.text) == (
        ReplyOutcome.DONE,
        "d0: serves as prefill, proven; drained in 1.5 s, down 20.0 s, effect after 0.8 s",
    )


def test_a_rolled_back_move_has_failed_with_the_reason() -> None:
    changes = ask(Changes(), NODE).changes

    back = seen(changes, ended(MoveStep.ROLLED_BACK, "unproven: nothing"))

    assert back is not None
    assert (back.outcome, back.text) == (
        ReplyOutcome.FAILED,
        "d0: is decode as before: unproven: nothing",
    )


def test_the_same_request_is_answered_by_the_next_daemon_too() -> None:
    under_way = replace(NODE, move=replace(MOVE, step=MoveStep.SWITCHING))

    waits = ask(Changes(), under_way)
    assert (waits.reply, waits.orders, waits.repeated) == (None, None, True)
    done = seen(waits.changes, ended(MoveStep.DONE))
    assert done is not None
    assert done.outcome is ReplyOutcome.DONE

    answered = ask(Changes(), replace(NODE, move=ended(MoveStep.DONE)))
    assert answered.reply is not None
    assert answered.reply.outcome is ReplyOutcome.DONE
    other = ask(Changes(), under_way, verb=ReassignWorker("d1", Role.PREFILL)).reply
    assert other is not None
    assert other.text == "the request id 1 was used for another request"


def test_a_second_request_for_the_same_change_joins_it_without_an_order() -> None:
    for verb in (VERB, DrainWorker("d0")):
        begun = ask(Changes(), NODE, verb=verb)
        assert begun.orders is not None
        for step in (MoveStep.LEAVING, MoveStep.SWITCHING, MoveStep.PROVING):
            move = replace(MOVE, step=step) if verb is VERB else None

            second = ask(begun.changes, replace(NODE, move=move), "2", verb)

            assert (second.reply, second.orders) == (None, None), (verb, step)
            assert second.changes.running is not None
            assert [id for id, _ in second.changes.running.asked] == ["1", "2"]


def test_a_move_that_timed_out_reports_its_current_state_when_requested_again() -> None:
    begun = handle(Changes(), ControlRequest("1", VERB, wait=False, deadline_seconds=5.0), NODE, S)
    late, said = advance(begun.changes, replace(NODE, move=MOVE), 10_000 * S)
    assert said is not None
    assert said.outcome is ReplyOutcome.TIMEOUT

    again = ask(late, replace(NODE, move=MOVE))
    assert (again.reply, again.orders) == (None, None)
    done = ask(late, replace(NODE, move=ended(MoveStep.DONE))).reply
    assert done is not None
    assert done.outcome is ReplyOutcome.DONE


def test_the_deadline_of_a_move_covers_the_move_and_its_rollback() -> None:
    worker = replace(D0, drain_seconds=600.0, restart_seconds=700.0)
    node = replace(NODE, workers=(worker, D1))
    running = ask(Changes(), node).changes.running

    assert running is not None
    whole = Patience(drain_seconds=600.0, start_seconds=700.0)
    assert running.deadline_ns - S > 2 * whole.move_seconds * S


def test_another_long_change_is_refused_during_a_move() -> None:
    running = ask(Changes(), NODE).changes
    found = replace(NODE, move=replace(MOVE, step=MoveStep.PROVING))

    for changes, node in ((running, NODE), (running, found), (Changes(), found)):
        for verb in (
            ReassignWorker("d1", Role.PREFILL),
            RestartWorker("d1"),
            DrainWorker("d1"),
            replace(VERB, drain_seconds=1.0),
        ):
            refused = ask(changes, node, "2", verb).reply
            assert refused is not None
            assert refused.outcome is ReplyOutcome.REFUSED, (verb, refused)


def test_a_drain_is_done_when_no_request_runs_and_continues_after_its_timeout() -> None:
    def drained(worker: WorkerView, now_ns: int) -> ControlReply:
        changes = ask(Changes(), NODE, verb=DrainWorker("d0")).changes
        reply = advance(changes, replace(NODE, workers=(worker, D1)), now_ns)[1]
        assert reply is not None
        return reply

    busy = replace(D0, drained=True)
    assert drained(replace(busy, routed_as="decode"), 2 * S).text == (
        "d0: the router has not let it go"
    )
    unknown = replace(busy, idle=True, routed_as="unknown")
    assert drained(unknown, 2 * S).text == (
        "d0: whether the router still sends it requests is not known"
    )
    assert drained(busy, 2 * S).text == "d0: requests still run"
    assert drained(replace(busy, remaining="2 requests still run"), 2 * S).text == (
        "d0: 2 requests still run"
    )
    no_process = replace(busy, pid=None)
    assert drained(replace(no_process, state=WorkerState.FAILED), 2 * S).outcome is (
        ReplyOutcome.DONE
    )
    assert drained(replace(no_process, state=WorkerState.STARTING), 2 * S).text == (
        "d0: whether requests still run is known once it is ready"
    )
    assert drained(replace(busy, unanswered="/health"), 2 * S).text == (
        "d0: it does not tell whether requests still run"
    )
    assert drained(busy, 62 * S).outcome is ReplyOutcome.TIMEOUT
    done = drained(replace(busy, idle=True), 3 * S)
    assert (done.outcome, done.text) == (
        ReplyOutcome.DONE,
        "d0: drained after 2.0 s; disagg-node resume d0 ends it",
    )
    assert drained(D0, 3 * S).text == "d0: the drain was called off"


def test_an_explanation_of_a_move_names_its_request_step_and_duration() -> None:
    waits = replace(MOVE, step=MoveStep.DRAINING, since_ns=S)
    node = replace(NODE, move=waits)

    assert explain(replace(D0, state_seconds=61.0, reason="healthy"), node, 5 * S) == (
        "d0 has been ready for 1m 1s: healthy",
        "its reassignment from decode to prefill (request 1) is under way: draining: waits until "
        "its last requests end, 60 s at most, for 4s now",
        "the router sends it no requests",
    )


@pytest.mark.parametrize(
    ("routed_as", "gets", "routed"),
    [
        ("", "it gets no new requests; requests still run", "the router sends it no requests"),
        (
            "decode",
            "the router has not let it go; requests still run",
            "the router sends it decode requests",
        ),
        (
            "unknown",
            "whether the router still sends it requests is not known",
            "which requests the router sends it is not known: it does not tell its engines",
        ),
    ],
)
def test_an_explanation_of_a_drain_states_nothing_of_the_router_that_is_not_known(
    routed_as: str, gets: str, routed: str
) -> None:
    *_, drained, last = explain(replace(D0, drained=True, routed_as=routed_as), NODE, 0)

    assert drained == f"it is drained by hand: {gets}; disagg-node resume d0 ends that"
    assert last == routed


def test_an_explanation_names_a_failed_probe_and_its_consequence() -> None:
    silent = replace(D0, unanswered="/health answers 503")

    told, paused = explain(silent, NODE, 0), explain(replace(silent, paused_seconds=1.0), NODE, 0)

    said = "its last health probe was not answered well: /health answers 503"
    assert told[1] == f"{said}; it is restarted if that lasts and it does no work"
    assert paused[1] == said


def test_an_explanation_names_drains_pauses_and_roles_that_differ_from_the_file() -> None:
    worker = replace(
        D0, drained=True, idle=True, paused_seconds=3.0, file_role="prefill", restarts=2
    )

    said = explain(worker, NODE, 0)

    assert [sentence.partition(":")[0] for sentence in said] == [
        "d0 has been ready for 0s",
        "it has been paused for 3s",
        "it is drained by hand",
        "it is a decode worker, as it was reassigned or as the file was when it began; the node "
        "file says prefill, which holds once it was stopped",
        "the router sends it no requests",
        "it was started again after a crash 2 times",
    ]
