"""Moves by the socket of the one daemon on this machine."""

from __future__ import annotations

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


class LocalMover:
    """Asks one daemon; workers of other nodes are refused.

    Args:
        socket: Its control socket.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def begin(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """Have it begin the move, if the worker is one of its own."""
        if not worker.supervised:
            told = f"no daemon of ours started {worker.worker}: whoever did has to move it"
            return MoveAnswer(MoveOutcome.REFUSED, told)
        try:
            node = self._node()
        except (BrokenOffError, MayNotAskError, NoDaemonError) as error:
            return MoveAnswer(MoveOutcome.REFUSED, str(error))
        if node != worker.node:
            told = (
                f"{worker.worker} is on {worker.node}, and only {node} is reached from here: "
                f"disagg-node reassign {worker.worker} --role {to_role} on that node moves it"
            )
            return MoveAnswer(MoveOutcome.REFUSED, told)
        return self._asked(worker, to_role, request_id)

    def look(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """Ask again by the same id."""
        return self._asked(worker, to_role, request_id)

    def _node(self) -> str:
        """What the daemon calls its node; empty if it does not say."""
        names = [
            reply.daemon.node
            for reply in ask(self._socket, new_request(DaemonStatus()), _STATUS_SECONDS)
            if reply.daemon is not None
        ]
        return names[-1] if names else ""

    def _asked(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        try:
            reply = reassign(self._socket, worker.worker, to_role, request_id)
        except (BrokenOffError, NoDaemonError) as error:
            # The daemon may be another one by now, which goes on with it.
            return MoveAnswer(MoveOutcome.UNDER_WAY, str(error), unheard=True)
        except MayNotAskError as error:
            return MoveAnswer(MoveOutcome.REFUSED, str(error))
        told = "; ".join(filter(None, (reply.text, *reply.problems, reply.way_out)))
        return MoveAnswer(_OUTCOMES.get(reply.outcome, MoveOutcome.FAILED), told)
