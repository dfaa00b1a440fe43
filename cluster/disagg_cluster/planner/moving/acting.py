"""Begins the move that is advised, one at a time, and follows it to its end."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from disagg_cluster.planner.moving.mover import MoveAnswer, MoveOutcome, Mover
from disagg_cluster.planner.rebalance.decision import Move
from disagg_cluster.planner.rebalance.model_rebalance import ModelRebalance
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker
from disagg_exporter.model import Role

_UNHEARD_SECONDS = 1800.0
"""After so long without an answer a move counts as failed."""

Whose = tuple[str, str]
"""Name of a model, and its namespace."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    whose: Whose
    worker: PoolWorker
    to_role: Role
    request_id: str
    heard_seconds: float


class Acting:
    """Makes moves by a mover; keeps what every model's moves were.

    Args:
        mover: Reaches the nodes.
        log: Logs every move and its outcome.
    """

    def __init__(self, mover: Mover, log: logging.Logger) -> None:
        self._mover = mover
        self._log = log
        self._under_way: _UnderWay | None = None
        self._logs: dict[Whose, MoveLog] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()

    @property
    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """Moves that have ended, by model, namespace and outcome."""
        return dict(self._counts)

    def log_of(self, whose: Whose) -> MoveLog:
        """What the moves of a model were."""
        return self._logs.get(whose, MoveLog())

    def act(self, said: ModelRebalance, now_seconds: float) -> None:
        """Begin the move that is advised; nothing while one of any model is under way.

        Nor where it is not measured how full the pools are: capacities that are wrong would move
        engines, and nothing would show it.
        """
        if self._under_way is not None or not isinstance(said.said, Move):
            return
        if said.worker is None or not said.measured:
            return
        whose = (said.model_name, said.engine_namespace)
        to_role, worker = said.said.to_role, said.worker
        move = _UnderWay(whose, worker, to_role, uuid.uuid4().hex, now_seconds)
        self._under_way = move
        # Also what is refused counts, so that nobody is asked again and again.
        self._logs[whose] = self.log_of(whose).begun(now_seconds, to_role, undoes=said.said.undoes)
        self._log.info("move %s on %s to %s", worker.worker, worker.node, to_role)
        self._heard(move, self._mover.begin(worker, to_role, move.request_id), now_seconds)

    def look(self, now_seconds: float) -> None:
        """Ask how far the move has come that is under way."""
        move = self._under_way
        if move is not None:
            answer = self._mover.look(move.worker, move.to_role, move.request_id)
            self._heard(move, answer, now_seconds)

    def _heard(self, move: _UnderWay, answer: MoveAnswer, now_seconds: float) -> None:
        outcome = answer.outcome
        heard_seconds = move.heard_seconds if answer.unheard else now_seconds
        if now_seconds - heard_seconds > _UNHEARD_SECONDS:
            outcome = MoveOutcome.FAILED
        if outcome is MoveOutcome.UNDER_WAY:
            self._under_way = _UnderWay(
                move.whose, move.worker, move.to_role, move.request_id, heard_seconds
            )
            return
        self._under_way = None
        done = outcome is MoveOutcome.DONE
        self._logs[move.whose] = self.log_of(move.whose).ended(now_seconds, done=done)
        self._counts[*move.whose, outcome.value] += 1
        say = self._log.info if done else self._log.warning
        say("move of %s to %s: %s: %s", move.worker.worker, move.to_role, outcome, answer.text)
