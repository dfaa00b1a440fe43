"""Interface for making moves, independent of how requests reach the node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from disagg_cluster.planner.rebalance.pool_worker import PoolWorker
from disagg_exporter.model import Role


class MoveOutcome(StrEnum):
    """State of a move; all but the first are label values of `disagg_rebalance_moves_total`."""

    UNDER_WAY = "under_way"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MoveAnswer:
    """State of a move, with a reason where it did not succeed.

    `unanswered`: there was no answer; the move is assumed to be under way. `by_daemon`: refused for
    a reason of the daemon that may soon be gone; it says nothing about the worker. `unheard`:
    refused before the daemon looked at the request; one that was accepted earlier goes on.
    """

    outcome: MoveOutcome
    text: str = ""
    unanswered: bool = False
    by_daemon: bool = False
    unheard: bool = False


class Mover(Protocol):
    """Begins moves, each with its own id, and reports their progress."""

    def begin(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """Ask a worker to change its role; refused if it cannot be reached."""

    def poll(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """Progress of the move; repeating the request with the same id does nothing twice."""
