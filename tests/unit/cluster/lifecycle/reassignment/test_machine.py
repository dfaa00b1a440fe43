"""A worker changes its role only where that shows, cuts no request, and is not left half moved."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.lifecycle.reassignment.machine import advance_move
from disagg_cluster.lifecycle.reassignment.progress import (
    MoveOrder,
    MoveStep,
    Patience,
    Reassignment,
    SwitchAnswer,
    WorkerSight,
)
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role
from support.moved_worker import FAULTY_BEHAVIOURS, EngineBehaviour, MovedWorker, ended

S = 1_000_000_000
MOVE = Reassignment("r", "w", Role.PREFILL, Role.DECODE, 0, 0, Patience())
READY = WorkerSight(WorkerState.READY, 1, Role.PREFILL, routed_as=Role.PREFILL)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_worker_leaves_the_router_drains_switches_joins_and_is_proven(in_place: bool) -> None:
    worker = MovedWorker(in_place=in_place)

    assert ended(worker) == (MoveStep.DONE, Role.PREFILL, 0)
    assert (worker.restarts, worker.switches) == ((0, 1) if in_place else (1, 0))
    assert worker.routed is Role.PREFILL
    move = worker.move
    assert move.drain_seconds is not None
    assert move.drain_seconds >= 1.0
    assert move.downtime_seconds is not None
    assert move.downtime_seconds >= 0.3
    assert move.effect_seconds is not None
    assert move.effect_seconds <= 10.0


def test_without_user_requests_a_probe_request_proves_the_move() -> None:
    worker = MovedWorker(work=False)

    assert ended(worker) == (MoveStep.DONE, Role.PREFILL, 0)
    assert worker.probes == 1


@pytest.mark.parametrize("behaviour", FAULTY_BEHAVIOURS)
@pytest.mark.parametrize("in_place", [False, True])
def test_an_engine_that_does_not_work_in_its_new_role_is_rolled_back(
    behaviour: EngineBehaviour, in_place: bool
) -> None:
    worker = MovedWorker(behaviour=behaviour, in_place=in_place)
    if in_place and behaviour is EngineBehaviour.NEVER_READY:
        pytest.skip("an engine that switches in place is there all the time")

    assert ended(worker) == (MoveStep.ROLLED_BACK, Role.DECODE, 0)
    assert worker.routed is Role.DECODE
    unready = behaviour is EngineBehaviour.NEVER_READY
    assert worker.move.why.startswith("not ready as prefill" if unready else "unproven: ")


@given(seed=st.integers(0, 2**32), behaviour=st.sampled_from(FAULTY_BEHAVIOURS), work=st.booleans())
def test_no_faulty_engine_is_accepted_as_switched(
    seed: int, behaviour: EngineBehaviour, work: bool
) -> None:
    worker = MovedWorker(behaviour=behaviour, work=work, drawn=random.Random(seed))

    assert worker.run().step is MoveStep.ROLLED_BACK


@pytest.mark.parametrize(
    "behaviour", [EngineBehaviour.CORRECT, EngineBehaviour.OLD_ROLE, EngineBehaviour.NEVER_READY]
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_new_daemon_completes_a_move_after_a_kill_at_any_step(
    behaviour: EngineBehaviour, in_place: bool
) -> None:
    settings = {"behaviour": behaviour, "in_place": in_place}
    expected = MovedWorker(**settings)  # type: ignore[arg-type]
    outcome = ended(expected)
    for kill_at in range(1, expected.writes + 1):
        worker = MovedWorker(**settings, kill_at=kill_at)  # type: ignore[arg-type]

        assert ended(worker) == outcome, (kill_at, worker.log)
        assert worker.restarts == expected.restarts, (kill_at, worker.log)
        assert worker.routed is expected.routed


def test_a_drain_past_its_deadline_is_rolled_back_without_a_restart() -> None:
    worker = MovedWorker(drains_in_seconds=1000.0)

    assert ended(worker) == (MoveStep.ROLLED_BACK, Role.DECODE, 0)
    assert (worker.restarts, worker.incarnation) == (0, 1)
    assert worker.move.why == "requests still run after 20 s"


def test_an_unreachable_router_keeps_the_worker_in_its_role() -> None:
    unknown = replace(READY, router_known=False, routed_as=None)
    waiting = advance_move(MOVE, unknown, 14 * S)
    assert waiting.move == MOVE

    given_up = advance_move(MOVE, unknown, 15 * S).move
    assert (given_up.step, given_up.undone) == (MoveStep.JOINING, True)
    back = advance_move(given_up, READY, 16 * S).move
    assert (back.step, back.why) == (MoveStep.ROLLED_BACK, "the router does not tell its engines")


def test_a_move_that_the_router_holds_up_says_whether_it_answers() -> None:
    """Of a router that does not tell its engines nothing is known: it may still send requests."""
    silent = replace(READY, router_known=False, routed_as=None)
    holds = "the router does not let it go"
    assert advance_move(MOVE, READY, 15 * S).move.why == holds

    back = advance_move(MOVE, silent, 15 * S).move
    failed = advance_move(back, silent, 30 * S).move

    untold = "the router does not tell its engines"
    assert (failed.step, failed.why) == (
        MoveStep.FAILED,
        f"{untold}; and on the way back: {untold}",
    )
    unrouted = replace(READY, routed_as=None)
    assert advance_move(back, unrouted, 30 * S).move.why.endswith("the router does not take it")


@pytest.mark.parametrize("state", [WorkerState.READY, WorkerState.BACKOFF])
def test_a_move_that_cannot_be_recorded_is_called_off_at_the_deadline_of_its_drain(
    state: WorkerState,
) -> None:
    draining = replace(MOVE, step=MoveStep.DRAINING)
    full = "cannot write the journal: No space left on device"
    drained = replace(READY, state=state, routed_as=None, idle=True, unwritten=full)

    assert advance_move(draining, drained, 59 * S).move == draining
    given_up = advance_move(draining, drained, 60 * S)

    assert (given_up.move.step, given_up.move.undone) == (MoveStep.JOINING, True)
    assert (given_up.move.why, given_up.orders) == (full, ())


@pytest.mark.parametrize("step", [MoveStep.LEAVING, MoveStep.DRAINING])
def test_a_worker_whose_peers_have_died_meanwhile_stays_in_its_role(step: MoveStep) -> None:
    needed = "m would be left without prefill: no other such worker is ready"
    alone = replace(READY, routed_as=None, idle=True, needed=needed)

    back = advance_move(replace(MOVE, step=step), alone, S)

    assert (back.move.step, back.move.undone) == (MoveStep.JOINING, True)
    assert (back.move.why, back.orders) == (needed, ())
    # Once its process is ended, it goes on: to return would take as long.
    switching = replace(MOVE, step=MoveStep.SWITCHING, beyond=1)
    assert advance_move(switching, replace(alone, restarting=True), S).move == switching


def test_a_drain_called_off_says_what_was_left() -> None:
    draining = replace(MOVE, step=MoveStep.DRAINING)
    held = replace(READY, routed_as=None, remaining="decode engines still fetch KV from it")

    assert advance_move(draining, held, 60 * S).move.why == (
        "decode engines still fetch KV from it after 60 s"
    )


def test_an_unproven_move_says_what_became_of_our_own_requests() -> None:
    proving = replace(MOVE, step=MoveStep.PROVING, base_seconds=((1.0, 1.0),))
    seen = replace(READY, role=Role.DECODE, phase_seconds=((1.0, 1.0),))
    hangs = replace(seen, probe_trouble="a request of ours through http://p0 is not answered")

    assert advance_move(proving, hangs, 30 * S).move.why == (
        "unproven: 0.000 of 0.000 GPU-seconds were decode within 30 s; "
        "a request of ours through http://p0 is not answered"
    )


def test_a_stop_fails_a_move_at_any_step_without_orders() -> None:
    for step in MoveStep:
        if step.final:
            continue
        for undone in (False, True):
            moving = replace(MOVE, step=step, undone=undone)
            stopped = replace(READY, being_stopped=True)

            moved = advance_move(moving, stopped, S)

            assert (moved.move.step, moved.orders) == (MoveStep.FAILED, ())
            assert moved.move.assigned_role is Role.PREFILL


def test_an_engine_that_refuses_to_switch_is_restarted_in_its_old_role() -> None:
    moving = replace(MOVE, step=MoveStep.SWITCHING, in_place=True, beyond=1)
    said = replace(READY, answer=SwitchAnswer.REFUSED, answer_text="HTTP 400: not idle")

    back = advance_move(moving, said, S).move
    assert back.why == "the engine did not switch: HTTP 400: not idle"
    assert (back.step, back.undone, back.in_place) == (MoveStep.LEAVING, True, False)
    left = replace(READY, routed_as=None)
    drains = advance_move(back, left, 2 * S).move
    restarting = advance_move(drains, replace(left, idle=True), 3 * S)

    assert restarting.orders == (MoveOrder.RESTART,)
    assert restarting.move.assigned_role is Role.PREFILL


@pytest.mark.parametrize("state", [WorkerState.BACKOFF, WorkerState.FAILED])
def test_an_engine_that_died_while_it_drained_is_started_in_its_new_role(
    state: WorkerState,
) -> None:
    """Asked to switch in place, it could only refuse, and the move would be undone."""
    draining = replace(MOVE, step=MoveStep.DRAINING, in_place=True)
    died = replace(READY, state=state, routed_as=None)

    begun = advance_move(draining, died, S)

    assert begun.orders == (MoveOrder.RESTART,)
    assert (begun.move.step, begun.move.assigned_role) == (MoveStep.SWITCHING, Role.DECODE)
    serves = replace(died, state=WorkerState.READY, incarnation=2, role=Role.DECODE)
    assert advance_move(begun.move, serves, 2 * S).move.step is MoveStep.JOINING


LEFT = replace(READY, routed_as=None, idle=True)


@pytest.mark.parametrize(
    ("order", "observed"),
    [
        (
            MoveOrder.RESTART,
            [
                replace(LEFT, restarting=True),
                replace(LEFT, incarnation=2, state=WorkerState.STARTING, role=Role.DECODE),
                replace(LEFT, incarnation=2, role=Role.DECODE),
            ],
        ),
        (
            MoveOrder.SWITCH,
            [
                replace(LEFT, answer=SwitchAnswer.SAID_DONE),
                replace(LEFT, answer=SwitchAnswer.SAID_DONE, role=Role.DECODE),
            ],
        ),
    ],
)
def test_an_order_is_repeated_until_its_effect_is_observed(
    order: MoveOrder, observed: list[WorkerSight]
) -> None:
    move = replace(MOVE, step=MoveStep.DRAINING, in_place=order is MoveOrder.SWITCH)
    orders = []
    for second, sight in enumerate([LEFT] * 4 + observed, 1):
        moved = advance_move(move, sight, second * S)
        move = moved.move
        orders.append(moved.orders)

    assert orders == [(order,)] * 4 + [()] * len(observed)
    assert move.step is MoveStep.JOINING


def test_a_failed_rollback_is_reported_with_both_reasons() -> None:
    back = replace(MOVE, step=MoveStep.SWITCHING, undone=True, why="unproven: nothing", beyond=2)
    died = replace(READY, incarnation=3, state=WorkerState.FAILED, reason="out of memory")

    failed = advance_move(back, died, S).move

    assert failed.step is MoveStep.FAILED
    assert failed.why == (
        "unproven: nothing; and on the way back: failed as prefill: out of memory"
    )


@given(
    step=st.sampled_from([s for s in MoveStep if not s.final]),
    undone=st.booleans(),
    in_place=st.booleans(),
    sight=st.builds(
        WorkerSight,
        state=st.sampled_from(list(WorkerState)),
        incarnation=st.integers(0, 3),
        role=st.sampled_from([Role.PREFILL, Role.DECODE]),
        restarting=st.booleans(),
        paused=st.booleans(),
        routed_as=st.sampled_from([None, Role.PREFILL, Role.DECODE]),
        has_router=st.booleans(),
        router_known=st.booleans(),
        idle=st.booleans(),
        phase_seconds=st.none() | st.tuples(st.tuples(st.floats(0, 9), st.floats(0, 9))),
        answer=st.sampled_from(list(SwitchAnswer)),
    ),
    now_ns=st.integers(0, 1000 * S),
)
def test_for_any_observation_no_busy_process_is_restarted_and_done_is_proven(
    step: MoveStep, undone: bool, in_place: bool, sight: WorkerSight, now_ns: int
) -> None:
    move = replace(MOVE, step=step, undone=undone, in_place=in_place, beyond=1)

    moved = advance_move(move, sight, now_ns)

    if MoveOrder.RESTART in moved.orders and step is MoveStep.DRAINING and not undone:
        assert sight.idle or sight.state in (WorkerState.BACKOFF, WorkerState.FAILED)
    if moved.move.step is MoveStep.DONE:
        assert step is MoveStep.PROVING
        assert moved.move.effect_seconds is not None
    if moved.move.step.final:
        assert moved.orders == ()
