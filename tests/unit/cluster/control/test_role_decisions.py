"""A move is refused, with the way out, rather than begun and rolled back."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from disagg_cluster.control.decisions import ControlRefusal, Orders, decide
from disagg_cluster.control.messages import (
    DrainWorker,
    PauseWorkers,
    ReassignWorker,
    RestartWorker,
    ResumeWorkers,
    Verb,
)
from disagg_cluster.control.role_decisions import removal_gaps
from disagg_cluster.control.service import SupervisedNode
from disagg_cluster.control.views import DaemonView, NodeOverview, RoleConstraints, WorkerView
from disagg_cluster.lifecycle.reassignment.progress import MoveStep, Patience, Reassignment
from disagg_cluster.lifecycle.state import UnpauseRequested, WorkerState
from disagg_exporter.model import Role

DAEMON = DaemonView("1.0", 1, "node", "/run/x", 1.0)
LIVE = RoleConstraints(membership="live")


def worker(name: str, role: str, **settings: Any) -> WorkerView:
    usual = {"state": WorkerState.READY, "role": role, "model_name": "m", "drain_seconds": 30.0}
    return WorkerView(**{"worker": name, **usual, **settings})


P0, P1 = worker("p0", "prefill"), worker("p1", "prefill")
D0, D1 = worker("d0", "decode", gpus=("GPU-1",)), worker("d1", "decode")
TO_PREFILL = ReassignWorker("d0", Role.PREFILL)
MOVE = Reassignment("r", "d1", Role.DECODE, Role.PREFILL, 0, 0, Patience())


def refusal(verb: Verb, *workers: WorkerView, **settings: Any) -> str:
    node = NodeOverview(DAEMON, workers or (P0, P1, D0, D1), **{"constraints": LIVE, **settings})
    decided = decide(verb, node)  # type: ignore[arg-type]
    assert isinstance(decided, ControlRefusal), decided
    assert decided.way_out
    return decided.why


def way_out(verb: Verb, *workers: WorkerView, **settings: Any) -> str:
    node = NodeOverview(DAEMON, workers, **{"constraints": LIVE, **settings})
    decided = decide(verb, node)  # type: ignore[arg-type]
    assert isinstance(decided, ControlRefusal), decided
    return decided.way_out


def orders(verb: Verb, *workers: WorkerView, **settings: Any) -> Orders:
    node = NodeOverview(DAEMON, workers or (P0, P1, D0, D1), **{"constraints": LIVE, **settings})
    decided = decide(verb, node)  # type: ignore[arg-type]
    assert isinstance(decided, Orders), decided
    return decided


def test_a_worker_beside_another_of_its_role_may_be_moved() -> None:
    decided = orders(TO_PREFILL)

    assert (decided.workers, decided.takes_time) == (("d0",), True)
    assert decided.text == "reassign d0 --role prefill begun"


def test_a_dry_run_describes_the_move_and_orders_nothing() -> None:
    decided = orders(replace(TO_PREFILL, dry_run=True, drain_seconds=5.0))

    assert (decided.workers, decided.takes_time) == ((), False)
    assert decided.text == (
        "d0 would leave the router, end its requests within 5 s, serve m as prefill with GPU-1 in "
        "place of decode, and be taken back if that shows no effect; nothing was done"
    )


@pytest.mark.parametrize("moved", ["d0", "d1"])
def test_a_dry_run_during_a_move_is_refused_with_that_move(moved: str) -> None:
    why = refusal(replace(TO_PREFILL, dry_run=True), move=replace(MOVE, worker=moved))

    assert why == f"{moved} is being reassigned to prefill ({MOVE.step})"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"paused_seconds": 1.0}, "d0 is paused"),
        ({"state": WorkerState.STARTING, "reason": "start 1"}, "d0 is starting: start 1"),
        ({"state": WorkerState.DRAINING}, "d0 is being stopped"),
        ({"state": WorkerState.DRAINING, "restarting": True}, "d0 is being restarted"),
        ({"role": "mixed"}, "d0 is a mixed worker"),
        ({"role": "router"}, "d0 is a router worker"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_worker_that_is_not_plainly_ready_is_not_moved(
    changes: dict[str, Any], why: str, dry_run: bool
) -> None:
    assert refusal(replace(TO_PREFILL, dry_run=dry_run), P0, replace(D0, **changes), D1) == why


@pytest.mark.parametrize(
    "other",
    [
        replace(D1, state=WorkerState.BACKOFF),
        replace(D1, drained=True),
        replace(D1, model_name="other"),
        worker("p1", "prefill"),
    ],
)
def test_the_last_ready_worker_of_a_phase_is_not_moved_or_drained(other: WorkerView) -> None:
    why = "m would be left without decode: no other such worker is ready"

    assert refusal(TO_PREFILL, P0, D0, other) == why
    assert refusal(DrainWorker("d0"), P0, D0, other) == why


@pytest.mark.parametrize("membership", ["live", "fixed"])
def test_the_only_worker_that_serves_a_phase_is_restarted_if_that_is_meant(membership: str) -> None:
    constraints = RoleConstraints(membership=membership)
    serving = [replace(each, routed_as=each.role) for each in (P0, D0, D1)]
    away = replace(serving[2], state=WorkerState.STARTING)
    for now in (RestartWorker("d0"), RestartWorker("d0", drain=False)):
        why = refusal(now, *serving[:2], away, constraints=constraints)
        assert why == "m would be left without decode: no other such worker is ready"
        given = orders(replace(now, force=True), *serving[:2], away, constraints=constraints)
        assert given.text.endswith(" --force begun")
    way = way_out(RestartWorker("d0"), *serving[:2], away, constraints=constraints)
    assert way == "d1 is starting: disagg-node explain d1; --force restarts d0 all the same"
    assert orders(RestartWorker("d0"), *serving, constraints=constraints).workers == ("d0",)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": WorkerState.FAILED},
        {"state": WorkerState.DRAINING, "restarting": True},
        {"drained": True},
        {"routed_as": ""},
        {"role": "router", "model_name": ""},
    ],
)
def test_a_worker_that_serves_nobody_is_restarted_without_ado(changes: dict[str, Any]) -> None:
    d0 = replace(D0, **{"routed_as": "decode", **changes})

    assert orders(RestartWorker("d0"), P0, d0).workers == ("d0",)


def test_a_hung_worker_is_restarted_even_as_the_last_of_its_role() -> None:
    hung = replace(LIVE, silent=frozenset({"d0"}))

    d0 = replace(D0, routed_as="decode")
    assert orders(RestartWorker("d0"), P0, d0, constraints=hung).workers == ("d0",)


def test_without_a_router_here_other_nodes_may_serve_while_a_worker_is_restarted() -> None:
    nothing_known = RoleConstraints()
    elsewhere = replace(LIVE, elsewhere=frozenset({Role.DECODE}))
    for constraints in (nothing_known, elsewhere):
        d0 = replace(D0, routed_as="decode" if constraints.membership else "")
        assert orders(RestartWorker("d0"), P0, d0, constraints=constraints).workers == ("d0",)


def test_workers_are_removed_if_others_serve_or_their_model_goes() -> None:
    p0, p1, d0, d1 = (replace(each, routed_as=each.role) for each in (P0, P1, D0, D1))
    moved = replace(d1, role="prefill", routed_as="prefill")
    gap = "d0: m would be left without decode: no other such worker is ready; make another worker"

    assert removal_gaps({"d0"}, {"m"}, (p0, d0, moved), LIVE) == (f"{gap} decode first",)
    assert removal_gaps({"d0", "p0"}, {"m"}, (p0, d0, moved), LIVE) == (f"{gap} decode first",)
    assert len(removal_gaps({"d0", "d1"}, {"m"}, (p0, p1, d0, d1), LIVE)) == 2
    assert removal_gaps({"d0"}, {"m"}, (p0, d0, d1), LIVE) == ()
    assert removal_gaps({"d0"}, {"other"}, (p0, d0, moved), LIVE) == ()
    failed = replace(d0, state=WorkerState.FAILED, routed_as="")
    assert removal_gaps({"d0"}, {"m"}, (p0, failed, moved), LIVE) == ()


def test_a_worker_that_neither_answers_nor_works_replaces_no_other() -> None:
    why = "m would be left without decode: no other such worker is ready"
    hung = replace(LIVE, silent=frozenset({"d1"}))

    assert refusal(TO_PREFILL, constraints=hung) == why
    assert refusal(DrainWorker("d0"), constraints=hung) == why
    # One missed probe of a busy engine is no reason.
    busy = replace(D1, unanswered="/health: no answer in time")
    assert orders(TO_PREFILL, P0, D0, busy).workers == ("d0",)


def test_a_worker_that_the_router_sends_nothing_does_not_replace_one_that_gets_requests() -> None:
    routed, unrouted = replace(D0, routed_as="decode"), D1

    assert "without decode" in refusal(TO_PREFILL, P0, routed, unrouted)
    assert way_out(TO_PREFILL, P0, routed, unrouted) == (
        "d1 gets no requests: disagg-node explain d1"
    )
    for also in ("decode", "unknown"):
        assert orders(TO_PREFILL, P0, routed, replace(D1, routed_as=also)).workers == ("d0",)
    # Nothing is lost with a worker that gets none itself.
    assert orders(TO_PREFILL, P0, D0, D1).workers == ("d0",)


def test_a_refusal_suggests_a_step_that_resolves_it() -> None:
    """It names a wait only if that ends, and no other worker where one only has to be restored."""
    failed, starting = WorkerState.FAILED, WorkerState.STARTING
    given_up = replace(D0, state=failed)
    assert way_out(TO_PREFILL, P0, given_up, D1) == (
        "disagg-node restart d0; once it is ready, reassign it"
    )
    assert way_out(TO_PREFILL, P0, replace(D0, state=starting), D1) == "wait until it is ready"
    lost = replace(D1, state=failed)
    assert way_out(TO_PREFILL, P0, D0, lost) == "d1 is failed: disagg-node explain d1"
    drained = replace(D1, drained=True)
    assert way_out(TO_PREFILL, P0, D0, drained) == "d1 is drained: disagg-node explain d1"
    hung = replace(LIVE, silent=frozenset({"d1"}))
    assert way_out(TO_PREFILL, P0, D0, D1, constraints=hung) == (
        "d1 is unresponsive: disagg-node explain d1"
    )
    assert way_out(TO_PREFILL, P0, D0) == "make another worker decode first"
    assert way_out(DrainWorker("d0"), P0, D0, D1, constraints=RoleConstraints()) == (
        "it takes a node file with a router and `membership: live`, and a new daemon"
    )


def test_the_last_local_worker_of_a_phase_may_move_if_other_nodes_serve_it() -> None:
    elsewhere = RoleConstraints("live", elsewhere=frozenset({Role.DECODE}))

    assert orders(TO_PREFILL, P0, D0, constraints=elsewhere).workers == ("d0",)


def test_an_impossible_move_or_drain_is_refused_with_the_reason() -> None:
    tp = {("d0", Role.PREFILL): ("its tensor parallel size 4 does not fit 3 of p0",)}
    stranger = {"d0": "processes of no engine of this node hold 2.0 GiB on GPU-1"}

    assert refusal(TO_PREFILL, constraints=replace(LIVE, misfits=tp)) == (
        "d0 cannot be a prefill worker: its tensor parallel size 4 does not fit 3 of p0"
    )
    assert refusal(TO_PREFILL, constraints=replace(LIVE, strangers=stranger)) == stranger["d0"]
    full = "cannot write the journal /run/x/journal.json: No space left on device"
    assert refusal(TO_PREFILL, constraints=replace(LIVE, unwritten=full)) == full
    assert orders(DrainWorker("d0"), constraints=replace(LIVE, unwritten=full)).workers == ("d0",)
    fixed = RoleConstraints(membership="fixed")
    kept = "the router of this node keeps its engines until it ends"
    assert refusal(TO_PREFILL, constraints=fixed) == kept
    assert refusal(DrainWorker("d0"), constraints=fixed) == kept
    assert "no router" in refusal(DrainWorker("d0"), constraints=RoleConstraints())
    router = worker("router", "router", model_name="")
    assert refusal(DrainWorker("router"), D0, router) == "router is a router worker"


def test_a_move_to_the_current_role_orders_nothing() -> None:
    decided = orders(ReassignWorker("d0", Role.DECODE))

    assert (decided.workers, decided.text) == ((), "d0 is a decode worker already")


@pytest.mark.parametrize("step", [step for step in MoveStep if not step.final])
def test_other_changes_are_refused_during_a_move(step: MoveStep) -> None:
    moving = replace(MOVE, step=step)
    told = f"d1 is being reassigned to prefill ({step})"

    for verb in (RestartWorker("d1"), RestartWorker("p0"), DrainWorker("d0"), PauseWorkers()):
        assert refusal(verb, move=moving) == told
    assert refusal(PauseWorkers("d1"), move=moving) == told
    assert orders(PauseWorkers("p0"), move=moving).workers == ("p0",)


def test_changes_are_allowed_after_a_move_has_ended() -> None:
    for step in (MoveStep.DONE, MoveStep.ROLLED_BACK, MoveStep.FAILED):
        moved = replace(MOVE, step=step)

        assert orders(RestartWorker("d1"), move=moved).workers == ("d1",)
        assert orders(TO_PREFILL, move=moved).workers == ("d0",)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_drained_worker_is_not_moved_because_it_would_get_requests_again(dry_run: bool) -> None:
    """A planner would even prefer it: it has the fewest requests."""
    drained, move = replace(D0, drained=True, idle=True), replace(TO_PREFILL, dry_run=dry_run)

    assert refusal(move, P0, drained, D1) == "d0 is drained"
    assert way_out(move, P0, drained, D1) == "disagg-node resume d0, then reassign it"


def test_a_drain_is_ended_by_a_resume() -> None:
    assert orders(DrainWorker("d0")).workers == ("d0",)
    drained = replace(D0, drained=True, idle=True)
    assert orders(DrainWorker("d0"), P0, drained, D1).text == "d0 is drained already"
    # Without a request at this moment, but the router may send it more.
    for routed_as in ("decode", "unknown"):
        routed = replace(drained, routed_as=routed_as)
        other = replace(D1, routed_as=routed_as)
        assert orders(DrainWorker("d0"), P0, routed, other).workers == ("d0",)

    resumed = orders(ResumeWorkers("d0"), P0, drained, D1)

    assert (resumed.workers, resumed.text) == (("d0",), "gets requests again: d0")


def test_a_resume_without_a_name_ends_no_drain() -> None:
    """Somebody else may be at work on that worker."""
    drained = replace(D0, drained=True, idle=True)
    none = orders(ResumeWorkers(), P0, drained, D1)
    paused = orders(ResumeWorkers(), replace(P0, paused_seconds=1.0), drained, D1)

    assert none.workers == ()
    assert none.text == "no worker is paused; drained until resumed by name: d0"
    assert paused.workers == ("p0",)
    assert paused.text == "supervised again: p0; drained until resumed by name: d0"


@pytest.mark.parametrize(("name", "ended"), [(None, []), ("d0", ["d0"])])
def test_a_worker_paused_and_drained_stays_drained_unless_it_is_named(
    name: str | None, ended: list[str]
) -> None:
    resumed = orders(ResumeWorkers(name), P0, replace(D0, drained=True, paused_seconds=1.0), D1)
    supervisor, routing = Mock(), Mock()

    SupervisedNode(supervisor, Mock(), routing).obey(resumed, "id")

    supervisor.handle.assert_called_once_with("d0", UnpauseRequested())
    assert [call.args[0] for call in routing.end_drain.call_args_list] == ended
