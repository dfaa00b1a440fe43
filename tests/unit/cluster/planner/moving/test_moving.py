"""Moves made by the planner: one at a time, each once, with their outcomes."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    DaemonStatus,
    ReassignWorker,
    ReplyOutcome,
)
from disagg_cluster.control.views import DaemonView
from disagg_cluster.control.wire import decode_request, encode_reply
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.moving.acting import Acting
from disagg_cluster.planner.moving.local_mover import LocalMover
from disagg_cluster.planner.moving.mover import MoveAnswer, MoveOutcome
from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.model_rebalance import ModelRebalance
from disagg_cluster.planner.rebalance.move_gain import MoveCost, MoveGain
from disagg_cluster.planner.rebalance.move_log import DoneMove, MoveLog
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker
from disagg_cluster.planner.rebalance.refusals import Refusals
from disagg_cluster.planner.rebalance.split_needs import RoleSplit
from disagg_exporter.model import Role

KIND = CostKey("llama", "default", Role.PREFILL, "A", 1)
WORKER = PoolWorker("node-a", "p-1", KIND, supervised=True)
SPLIT = RoleSplit(4, 4)
MOVE = Move(Role.PREFILL, Role.DECODE, MoveGain(1, SPLIT.moved(1), 1.0, 1.0, 60.0))
LOG = logging.getLogger("test")
UNDER_WAY = MoveAnswer(MoveOutcome.UNDER_WAY)


def advice(move: Move | Stay = MOVE, name: str = "llama") -> ModelRebalance:
    return ModelRebalance(name, "default", SPLIT, move, MoveCost(60.0), WORKER, True)


@dataclass
class _Mover:
    """Gives scripted answers; records the ids of requests."""

    answers: list[MoveAnswer]
    begun: list[str] = field(default_factory=list)
    polled: list[str] = field(default_factory=list)

    def begin(self, _worker: PoolWorker, _to_role: Role, request_id: str) -> MoveAnswer:
        self.begun.append(request_id)
        return self.answers.pop(0)

    def poll(self, _worker: PoolWorker, _to_role: Role, request_id: str) -> MoveAnswer:
        self.polled.append(request_id)
        return self.answers.pop(0)


def test_a_move_is_begun_once_and_followed_by_its_id_until_it_is_done() -> None:
    mover = _Mover([UNDER_WAY, UNDER_WAY, MoveAnswer(MoveOutcome.DONE)])
    acting = Acting(mover, LOG)
    acting.act(advice(), 0.0)
    acting.act(advice(), 5.0)
    acting.act(advice(name="another"), 5.0)
    for now in (5.0, 10.0, 15.0):
        acting.poll(now)

    assert mover.polled == mover.begun * 2
    assert acting.counts == {("llama", "default", "done"): 1}
    assert acting.log_of(("llama", "default")).last == DoneMove(Role.DECODE, 10.0)
    assert acting.log_of(("another", "default")).begun_seconds == ()


def test_a_refused_move_counts_and_cools_down_like_others() -> None:
    acting = Acting(_Mover([MoveAnswer(MoveOutcome.REFUSED, "not mine")]), LOG)
    acting.act(advice(), 0.0)

    assert acting.counts == {("llama", "default", "refused"): 1}
    why = acting.log_of(("llama", "default")).why_not(RebalanceLimits(), 60.0)
    assert why == "the last move ended 60 s ago: cooling down"


def test_moves_that_nodes_report_count_for_a_planner_that_has_just_begun() -> None:
    """Else one that crashes again and again would move without end."""
    ends = {WORKER.id: (600.0, 1200.0), ("node-b", "d-9"): (900.0,)}
    acting = Acting(_Mover([]), LOG, lambda _now_seconds: ends)
    acting.learn([WORKER], 1260.0)

    # Of one that is not known now, the model is not known either.
    three, four = (RebalanceLimits(moves_per_hour=most) for most in (3, 4))
    log = acting.log_of(("llama", "default"))
    assert log.why_not(four, 1260.0) == "the last move ended 60 s ago: cooling down"
    assert log.why_not(four, 1320.0) == ""
    assert log.why_not(three, 4199.0) == "3 moves began within the last hour: no more are allowed"
    assert log.why_not(three, 4200.0) == ""
    patient = RebalanceLimits(cool_down_seconds=86_400.0)
    assert log.why_not(patient, 80_000.0) == "the last move ended 78800 s ago: cooling down"


def test_a_move_of_the_planner_counts_once_when_its_node_reports_it_too() -> None:
    ends: dict[tuple[str, str], tuple[float, ...]] = {}
    acting = Acting(_Mover([UNDER_WAY, MoveAnswer(MoveOutcome.DONE)]), LOG, lambda _: ends)
    acting.act(advice(), 0.0)
    acting.poll(60.0)
    ends[WORKER.id] = (90.0,)
    acting.learn([WORKER], 300.0)

    limits = RebalanceLimits(moves_per_hour=2)
    assert acting.log_of(("llama", "default")).why_not(limits, 300.0) == ""


def test_a_worker_that_refused_is_left_out_for_an_hour() -> None:
    refused = MoveAnswer(MoveOutcome.REFUSED, "p-1 is paused")
    acting = Acting(_Mover([refused, MoveAnswer(MoveOutcome.DONE)]), LOG)
    acting.act(advice(), 10.0)

    assert acting.left_out(3609.0) == {("node-a", "p-1")}
    assert acting.left_out(3610.0) == set()
    # The clock was set back.
    assert acting.left_out(9.0) == set()
    acting.act(advice(), 600.0)
    assert acting.left_out(601.0) == set()


def test_a_worker_that_failed_to_move_is_left_out_for_an_hour_too() -> None:
    failed = MoveAnswer(MoveOutcome.FAILED, "p-1 does not start as decode")
    acting = Acting(_Mover([UNDER_WAY, failed]), LOG)
    acting.act(advice(), 0.0)
    acting.poll(10.0)

    assert acting.left_out(3609.0) == {("node-a", "p-1")}
    assert acting.left_out(3610.0) == set()


def test_only_refusals_of_the_last_hour_are_remembered() -> None:
    found = Refusals()
    for number in range(100):
        worker = replace(WORKER, worker=f"p-{number}")
        found = found.answered(worker, 600.0 * number, refused=True)

    assert len(found.at_seconds) == 6


def test_a_worker_is_not_left_out_because_its_daemon_refuses_for_now() -> None:
    busy = MoveAnswer(MoveOutcome.REFUSED, "another change is under way", by_daemon=True)
    acting = Acting(_Mover([busy]), LOG)
    acting.act(advice(), 0.0)

    assert acting.left_out(1.0) == set()


def test_moves_that_their_daemon_could_not_take_leave_the_hour_to_others() -> None:
    """A daemon was away for some rounds: once it is back, nothing else keeps a move from it."""
    away = MoveAnswer(MoveOutcome.REFUSED, "no daemon answers", by_daemon=True)
    acting = Acting(_Mover([away] * 6), LOG)
    for round_seconds in range(0, 1800, 300):
        acting.act(advice(), round_seconds)

    log = acting.log_of(("llama", "default"))
    assert log.why_not(RebalanceLimits(), 1560.0) == "the last move ended 60 s ago: cooling down"
    assert log.why_not(RebalanceLimits(), 1800.0) == ""
    assert acting.counts == {("llama", "default", "refused"): 6}


def test_a_move_that_was_begun_counts_although_its_daemon_refuses_it_later() -> None:
    forgot = MoveAnswer(MoveOutcome.REFUSED, "another change is under way", by_daemon=True)
    acting = Acting(_Mover([UNDER_WAY, forgot]), LOG)
    acting.act(advice(), 0.0)
    acting.poll(10.0)

    assert acting.log_of(("llama", "default")).begun_seconds == (0.0,)


def test_a_move_without_an_answer_for_half_an_hour_has_failed() -> None:
    unanswered = replace(UNDER_WAY, unanswered=True)
    acting = Acting(_Mover([unanswered, unanswered, unanswered, unanswered]), LOG)
    acting.act(advice(), 0.0)
    for now in (600.0, 1800.0):
        acting.poll(now)
        assert acting.counts == {}
    acting.poll(1801.0)

    assert acting.counts == {("llama", "default", "failed"): 1}
    # That its daemon is gone says nothing about the worker.
    assert acting.left_out(1802.0) == set()


def test_a_move_without_an_answer_fails_in_time_although_the_clock_is_set() -> None:
    unanswered = replace(UNDER_WAY, unanswered=True)
    acting = Acting(_Mover([UNDER_WAY, *[unanswered] * 4]), LOG)
    acting.act(advice(), 90_000.0)
    # Set ahead by two hours: one missing answer is no failure.
    acting.poll(97_200.0)
    # Set back by a day.
    for now in (3600.0, 5400.0):
        acting.poll(now)
        assert acting.counts == {}
    acting.poll(5401.0)

    assert acting.counts == {("llama", "default", "failed"): 1}


def test_moves_before_the_clock_was_set_back_do_not_count_once_it_gets_there() -> None:
    refused = MoveAnswer(MoveOutcome.REFUSED, "p-1 is paused")
    acting = Acting(_Mover([refused]), LOG)
    acting.act(advice(), 90_000.0)
    acting.poll(3600.0)

    assert acting.log_of(("llama", "default")) == MoveLog()
    assert acting.left_out(90_001.0) == set()


def test_without_advice_worker_or_measurement_no_move_begins() -> None:
    mover = _Mover([])
    acting = Acting(mover, LOG)
    acting.act(advice(Stay("no move pays")), 0.0)
    acting.act(replace(advice(), worker=None), 0.0)
    acting.act(replace(advice(), measured=False), 0.0)

    assert mover.begun == []


@contextmanager
def daemon(path: Path, *replies: ReplyOutcome, reason: str = "") -> Iterator[list[ControlRequest]]:
    """A daemon of node-a that gives these replies to moves; yields the requests it received."""
    asked: list[ControlRequest] = []
    left = list(replies)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                link, _ = listener.accept()
                with link, link.makefile("rb") as stream:
                    if not (line := stream.readline()):
                        return
                    request = decode_request(line)
                    if isinstance(request.verb, DaemonStatus):
                        view = DaemonView("1", 1, "node-a", "/run", 1.0)
                        reply = ControlReply(request.id, ReplyOutcome.DONE, daemon=view)
                    else:
                        asked.append(request)
                        reply = ControlReply(request.id, left.pop(0), "so it is", reason=reason)
                    link.sendall(encode_reply(reply))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            # A connection without a request ends it.
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()


def test_the_local_daemon_is_asked_with_the_same_id_until_done(tmp_path: Path) -> None:
    path = tmp_path / "control.socket"
    with daemon(path, ReplyOutcome.ACCEPTED, ReplyOutcome.ACCEPTED, ReplyOutcome.DONE) as asked:
        mover = LocalMover(path)
        found = [mover.begin(WORKER, Role.DECODE, "7")]
        found += [mover.poll(WORKER, Role.DECODE, "7") for _ in range(2)]

    assert [each.outcome for each in found] == [
        MoveOutcome.UNDER_WAY,
        MoveOutcome.UNDER_WAY,
        MoveOutcome.DONE,
    ]
    assert {(each.id, each.verb) for each in asked} == {("7", ReassignWorker("p-1", Role.DECODE))}


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (
            replace(WORKER, node="node-b"),
            "p-1 is on node-b, and only node-a is reached from here: "
            "disagg-node reassign p-1 --role decode on that node moves it",
        ),
        (
            replace(WORKER, supervised=False),
            "no daemon of ours started p-1: move it with what started it",
        ),
    ],
)
def test_workers_of_other_nodes_or_other_launchers_are_refused_with_instructions(
    tmp_path: Path, worker: PoolWorker, why: str
) -> None:
    path = tmp_path / "control.socket"
    with daemon(path) as asked:
        answer = LocalMover(path).begin(worker, Role.DECODE, "7")

    assert (answer, asked) == (MoveAnswer(MoveOutcome.REFUSED, why), [])


@pytest.mark.parametrize(
    ("reason", "by_daemon"),
    [
        ("paused", False),
        ("change_under_way", True),
        ("stopping", True),
        ("unwritten_journal", True),
    ],
)
def test_a_refusal_is_known_to_be_of_the_worker_or_of_its_daemon(
    tmp_path: Path, reason: str, by_daemon: bool
) -> None:
    path = tmp_path / "control.socket"
    with daemon(path, ReplyOutcome.REFUSED, reason=reason):
        answer = LocalMover(path).begin(WORKER, Role.DECODE, "7")

    assert (answer.outcome, answer.by_daemon) == (MoveOutcome.REFUSED, by_daemon)


def test_a_worker_that_has_the_role_already_was_not_moved(tmp_path: Path) -> None:
    """Somebody else moved it, and the metrics are older: the planner could take that back."""
    path = tmp_path / "control.socket"
    with daemon(path, ReplyOutcome.DONE):
        answer = LocalMover(path).begin(WORKER, Role.DECODE, "7")

    assert (answer.outcome, answer.by_daemon) == (MoveOutcome.REFUSED, True)
    assert answer.text == "so it is"


@pytest.mark.parametrize("reason", ["too_many", "not_allowed"])
def test_a_move_goes_on_although_its_daemon_does_not_listen_for_now(
    tmp_path: Path, reason: str
) -> None:
    path = tmp_path / "control.socket"
    with daemon(path, ReplyOutcome.REFUSED, ReplyOutcome.REFUSED, reason=reason):
        begun = LocalMover(path).begin(WORKER, Role.DECODE, "7")
        polled = LocalMover(path).poll(WORKER, Role.DECODE, "7")

    assert (begun.outcome, begun.by_daemon) == (MoveOutcome.REFUSED, True)
    assert (polled.outcome, polled.unanswered) == (MoveOutcome.UNDER_WAY, True)


def test_without_a_daemon_a_new_move_is_refused_and_a_begun_one_unanswered(tmp_path: Path) -> None:
    mover = LocalMover(tmp_path / "control.socket")

    begun = mover.begin(WORKER, Role.DECODE, "7")
    assert (begun.outcome, begun.by_daemon) == (MoveOutcome.REFUSED, True)
    polled = mover.poll(WORKER, Role.DECODE, "7")
    assert (polled.outcome, polled.unanswered) == (MoveOutcome.UNDER_WAY, True)
