"""Begins advised moves, one at a time, and follows each to its end."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from disagg_cluster.planner.moving.mover import MoveAnswer, MoveOutcome, Mover
from disagg_cluster.planner.rebalance.decision import Move
from disagg_cluster.planner.rebalance.model_rebalance import ModelRebalance
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker, WorkerId
from disagg_cluster.planner.rebalance.refusals import Refusals
from disagg_exporter.model import Role

_UNANSWERED_SECONDS = 1800.0
"""A move without an answer for this long, from the first one that is missing, has failed."""

ModelId = tuple[str, str]
"""Name and namespace of a model."""

ReportedEnds = Callable[[float], Mapping[WorkerId, tuple[float, ...]]]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    model_id: ModelId
    worker: PoolWorker
    to_role: Role
    request_id: str
    unanswered_since: float | None = None


class Acting:
    """Makes moves through a mover, and keeps a log of each model's moves.

    Args:
        mover: Sends requests to the nodes.
        log: Logs every move and its outcome.
        reported: When moves ended that nodes report, by worker, given the Unix time.
    """

    def __init__(
        self, mover: Mover, log: logging.Logger, reported: ReportedEnds = lambda _now_seconds: {}
    ) -> None:
        self._mover = mover
        self._log = log
        self._reported = reported
        self._under_way: _UnderWay | None = None
        self._logs: dict[ModelId, MoveLog] = {}
        self._refusals = Refusals()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    @property
    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """Ended moves by model, namespace and outcome."""
        return dict(self._counts)

    def log_of(self, model_id: ModelId) -> MoveLog:
        """Log of a model's moves."""
        return self._logs.get(model_id, MoveLog())

    def left_out(self, now_seconds: float) -> Set[WorkerId]:
        """Workers that refused, or failed, to move within the last hour."""
        return self._refusals.left_out(now_seconds)

    def learn(self, workers: Iterable[PoolWorker], now_seconds: float) -> None:
        """Add the moves that nodes report to the logs of their workers' models.

        They hold for any planner: for one that has just begun, and beside another, or a person. A
        worker that is not among these may be of any model.

        Raises:
            PrometheusError: They cannot be read.
        """
        ends = self._reported(now_seconds)
        models = {each.id: (each.kind.model_name, each.kind.engine_namespace) for each in workers}
        for model_id in {*models.values(), *self._logs}:
            of_model = (at for id, at in ends.items() if models.get(id, model_id) == model_id)
            reported_seconds = tuple(sorted(each for at in of_model for each in at))
            self._logs[model_id] = replace(self.log_of(model_id), reported_seconds=reported_seconds)

    def act(self, rebalance: ModelRebalance, now_seconds: float) -> None:
        """Begin the advised move, unless one of any model is under way.

        Without measured use of the pools nothing is moved: wrong capacities would move engines, and
        nothing would reveal it.
        """
        if self._under_way is not None or not isinstance(rebalance.advice, Move):
            return
        if rebalance.worker is None or not rebalance.measured:
            return
        model_id = (rebalance.model_name, rebalance.engine_namespace)
        to_role, worker = rebalance.advice.to_role, rebalance.worker
        move = _UnderWay(model_id, worker, to_role, uuid.uuid4().hex)
        self._under_way = move
        # Refused moves count too, so that requests are not repeated endlessly; those that their
        # daemon could not take do not: the time without it would be followed by one without moves.
        self._logs[model_id] = self.log_of(model_id).begun(
            now_seconds, to_role, undoes=rebalance.advice.undoes
        )
        self._log.info("move %s on %s to %s", worker.worker, worker.node, to_role)
        answer = self._mover.begin(worker, to_role, move.request_id)
        if answer.outcome is MoveOutcome.REFUSED and answer.by_daemon:
            self._logs[model_id] = self.log_of(model_id).not_begun()
        self._apply_answer(move, answer, now_seconds)

    def poll(self, now_seconds: float) -> None:
        """Ask for the progress of the move under way."""
        # If the clock was set back, times would count again once it gets there.
        self._logs = {each: log.until(now_seconds) for each, log in self._logs.items()}
        self._refusals = self._refusals.until(now_seconds)
        move = self._under_way
        if move is not None:
            answer = self._mover.poll(move.worker, move.to_role, move.request_id)
            self._apply_answer(move, answer, now_seconds)

    def _apply_answer(self, move: _UnderWay, answer: MoveAnswer, now_seconds: float) -> None:
        outcome = answer.outcome
        since: float | None = None
        if answer.unanswered:
            since = now_seconds
            if move.unanswered_since is not None:
                since = min(since, move.unanswered_since)
            if now_seconds - since > _UNANSWERED_SECONDS:
                outcome = MoveOutcome.FAILED
        if outcome is MoveOutcome.UNDER_WAY:
            self._under_way = replace(move, unanswered_since=since)
            return
        self._under_way = None
        done = outcome is MoveOutcome.DONE
        # A worker that failed to change, and went back, would most likely fail again.
        refused = outcome is MoveOutcome.REFUSED and not answer.by_daemon
        unable = refused or answer.outcome is MoveOutcome.FAILED
        self._refusals = self._refusals.answered(move.worker, now_seconds, refused=unable)
        self._logs[move.model_id] = self.log_of(move.model_id).ended(now_seconds, done=done)
        self._counts[*move.model_id, outcome.value] += 1
        say = self._log.info if done else self._log.warning
        say("move of %s to %s: %s: %s", move.worker.worker, move.to_role, outcome, answer.text)
