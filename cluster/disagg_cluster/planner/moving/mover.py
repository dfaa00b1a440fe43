"""Who makes moves, whatever carries the request to the node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from disagg_cluster.planner.rebalance.pool_worker import PoolWorker
from disagg_exporter.model import Role


class MoveOutcome(StrEnum):
    """How far a move has come; the words of `disagg_rebalance_moves_total`, but for the first."""

    UNDER_WAY = "under_way"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MoveAnswer:
    """What is said of a move, in words where it did not go well.

    `unheard`: nobody answered, and it is under way as far as anybody knows.
    """

    outcome: MoveOutcome
    text: str = ""
    unheard: bool = False


class Mover(Protocol):
    """Begins moves, each by an id of its own, and says how far they came."""

    def begin(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """Have a worker change its role; refused where it cannot be reached."""

    def look(self, worker: PoolWorker, to_role: Role, request_id: str) -> MoveAnswer:
        """How far that came; asked again by the same id nothing is done twice."""
