"""Moves through the control socket of the daemon on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from disagg_cluster.control.client import (
    BrokenOffError,
    MayNotAskError,
    NoDaemonError,
    ask,
    new_request,
    reassign,
)
from disagg_cluster.control.messages import DaemonStatus, ReplyOutcome
from disagg_cluster.control.refusal import RefusalReason
from disagg_cluster.planner.moving.mover import MoveAnswer, MoveOutcome
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker
from disagg_exporter.model import Role

_STATUS_SECONDS = 10.0
_OUTCOMES = {
    ReplyOutcome.ACCEPTED: MoveOutcome.UNDER_WAY,
    ReplyOutcome.TIMEOUT: MoveOutcome.UNDER_WAY,
    ReplyOutcome.DONE: MoveOutcome.DONE,
    ReplyOutcome.REFUSED: MoveOutcome.REFUSED,
    ReplyOutcome.INVALID: MoveOutcome.REFUSED,
}
_BY_DAEMON = {
    RefusalReason.STOPPING,
    RefusalReason.REUSED_ID,
    RefusalReason.CHANGE_UNDER_WAY,
    RefusalReason.UNWRITTEN_JOURNAL,
    RefusalReason.NOT_ALLOWED,
    RefusalReason.TOO_MANY,
}
"""Refusals that any worker would meet now, and none perhaps in a moment."""
_UNHEARD = {RefusalReason.NOT_ALLOWED, RefusalReason.TOO_MANY}
"""Refusals before a request is looked at: whether it is known, and its move under way, is open."""


class LocalMover:
    """Asks one daemon; moves of other nodes' workers are refused.

    Args:
        socket: The daemon's control socket.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def begin(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """Ask the daemon to begin the move, if the worker is its own."""
        if not worker.supervised:
            why = f"no daemon of ours started {worker.worker}: move it with what started it"
            return MoveAnswer(MoveOutcome.REFUSED, why)
        try:
            node = self._node()
        except (BrokenOffError, MayNotAskError, NoDaemonError) as error:
            return MoveAnswer(MoveOutcome.REFUSED, str(error), by_daemon=True)
        if node != worker.node:
            why = (
                f"{worker.worker} is on {worker.node}, and only {node} is reached from here: "
                f"disagg-node reassign {worker.worker} --role {to_role} on that node moves it"
            )
            return MoveAnswer(MoveOutcome.REFUSED, why)
        answer = self._reassign(worker, to_role, request_id)
        if answer.outcome is MoveOutcome.DONE:
            # No move is over at once: it had that role already, and the metrics were older.
            return replace(answer, outcome=MoveOutcome.REFUSED, by_daemon=True)
        return answer

    def poll(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """Ask again with the same id."""
        answer = self._reassign(worker, to_role, request_id)
        if answer.unheard:
            return replace(answer, outcome=MoveOutcome.UNDER_WAY, unanswered=True)
        return answer

    def _node(self) -> str:
        """Name of the daemon's node; empty if it is not reported."""
        names = [
            reply.daemon.node
            for reply in ask(self._socket, new_request(DaemonStatus()), _STATUS_SECONDS)
            if reply.daemon is not None
        ]
        return names[-1] if names else ""

    def _reassign(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        try:
            reply = reassign(self._socket, worker.worker, to_role, request_id)
        except (BrokenOffError, NoDaemonError) as error:
            # A new daemon may have taken over and continue the move.
            return MoveAnswer(MoveOutcome.UNDER_WAY, str(error), unanswered=True)
        except MayNotAskError as error:
            return MoveAnswer(MoveOutcome.REFUSED, str(error), by_daemon=True, unheard=True)
        text = "; ".join(filter(None, (reply.text, *reply.problems, reply.way_out)))
        outcome = _OUTCOMES.get(reply.outcome, MoveOutcome.FAILED)
        of_daemon, unheard = reply.reason in _BY_DAEMON, reply.reason in _UNHEARD
        return MoveAnswer(outcome, text, by_daemon=of_daemon, unheard=unheard)
