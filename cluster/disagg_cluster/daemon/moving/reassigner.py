"""Controls which requests the workers get, and carries out moves to another role.

Decisions made in `lifecycle/reassignment` are first written to the journal and then carried out by
the supervisor, the router and the engines. A daemon that finds an unfinished move in the journal
resumes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.control.explanation import move_stage
from disagg_cluster.control.messages import ReassignWorker
from disagg_cluster.control.service import RoutingView
from disagg_cluster.control.views import RoleConstraints
from disagg_cluster.daemon.moving.engine_requests import EngineRequests
from disagg_cluster.daemon.moving.observer import MoveObserver
from disagg_cluster.daemon.moving.tally import MoveTally
from disagg_cluster.launch.role_fit import all_misfits
from disagg_cluster.lifecycle.reassignment.machine import advance_move, resumed
from disagg_cluster.lifecycle.reassignment.progress import (
    ROLES,
    MoveOrder,
    MoveStep,
    Patience,
    Reassignment,
    SwitchAnswer,
    WorkerSight,
)
from disagg_cluster.lifecycle.state import RestartRequested
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.journal.journal_text import Assignments, Entry
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.model import ReassignStatus, Role

POLL_SECONDS = 0.25
"""How often a move is checked when no event is reported."""


class Reassigner:
    """Assigns roles to workers; implements `WorkerRouting` for the control service.

    Args:
        config: The node file.
        journal: Records roles and moves with the workers.
        spec_in_role: Returns the spec of a worker in a role.
        observer: Observes the workers and their environment.
        requests: Sends requests to the engines themselves.
        changed: Called when a worker's role or routing has changed.
        switched: Called with a worker whose engine changed its role within the same process.
        log: Logs each step.
    """

    def __init__(
        self,
        config: NodeConfig,
        journal: Journal,
        spec_in_role: Callable[[Worker, Role], WorkerSpec],
        observer: MoveObserver,
        requests: EngineRequests,
        changed: Callable[[], None],
        switched: Callable[[str], None],
        log: logging.Logger,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._workers = {worker.name: worker for worker in config.workers}
        self._journal = journal
        self._spec_in_role = spec_in_role
        self._observer = observer
        self._requests = requests
        self._changed = changed
        self._switched = switched
        self._log = log
        self._clock_ns = clock_ns
        self._config = config
        self._misfits = all_misfits(config)
        self._supervisor: Supervisor | None = None
        self._roles: dict[str, Role] = {}
        self._drained: dict[str, int] = {}
        self._move: Reassignment | None = None
        self._tally = MoveTally((w.name for w in config.workers if w.role in ROLES), log)
        self._happened = asyncio.Event()

    def respecify(self, worker: Worker) -> None:
        """Use a changed worker section from the next start on, in the worker's current role."""
        self._workers[worker.name] = worker
        workers = tuple(self._workers.values())
        self._misfits = all_misfits(self._config.model_copy(update={"workers": workers}))
        if self._supervisor is not None:
            self._assign(worker.name)

    def set_workers(self, config: NodeConfig) -> None:
        """Switch to these workers; manual roles and drains of removed workers are dropped."""
        self._config = config
        self._workers = {worker.name: worker for worker in config.workers}
        self._misfits = all_misfits(config)
        movable = [worker.name for worker in config.workers if worker.role in ROLES]
        self._roles = {name: role for name, role in self._roles.items() if name in movable}
        self._drained = {name: ns for name, ns in self._drained.items() if name in movable}
        self._tally.keep(movable)
        self._write()

    def adopt(self, supervisor: Supervisor, entries: Sequence[Entry], said: Assignments) -> None:
        """Resume the previous daemon's moves and roles, before the supervisor adopts workers.

        Manual roles and drains end with the worker's process: they are kept only for workers that
        are still running and whose role in the node file can be changed.
        """
        self._supervisor = supervisor
        movable = {name for name, worker in self._workers.items() if worker.role in ROLES}
        left = {entry.worker for entry in entries} & movable
        now_ns = self._clock_ns()
        self._roles = {name: role for name, role in said.roles.items() if name in left}
        self._drained = dict.fromkeys((name for name in said.drained if name in left), now_ns)
        if said.move is not None and said.move.worker in left:
            self._move = resumed(said.move, now_ns)
            if not self._move.step.final:
                self._log.warning(
                    "%s: its reassignment from %s to %s continues: %s",
                    self._move.worker,
                    self._move.from_role,
                    self._move.to_role,
                    move_stage(self._move),
                )
        self._write()
        for name in self._workers:
            self._assign(name)
        self._changed()

    @property
    def move(self) -> Reassignment | None:
        """The last reassignment, finished or in progress."""
        return self._move

    def role_of(self, worker: str) -> Role:
        """The role in which a worker is to be started."""
        move = self._move_of(worker)
        return move.assigned_role if move else self._roles.get(worker, self._workers[worker].role)

    def gets_requests(self, worker: str) -> bool:
        """Whether the router is to send a worker requests, in the role that it serves."""
        move = self._move_of(worker)
        return worker not in self._drained and (move is None or move.routed_as is not None)

    def constraints(self) -> RoleConstraints:
        """The facts besides the workers that decisions about roles need."""
        if self._journal.unwritten:
            self._write()  # there may be room by now
        seen, unwritten = self._observer.constraints(), self._journal.unwritten
        return replace(seen, misfits=self._misfits, unwritten=unwritten)

    def routing_of(self, worker: str) -> RoutingView:
        """What requests a worker gets."""
        if worker not in self._workers:
            return RoutingView()
        file_role = self._workers[worker].role.value
        routed, since_ns = self._observer.routed_as(worker), self._drained.get(worker)
        routed_as = routed.value if routed else ""
        if since_ns is None:
            return RoutingView(file_role, routed_as)
        remaining = self._observer.remaining(worker, self._served_role(worker), since_ns)
        return RoutingView(file_role, routed_as, drained=True, remaining=remaining)

    def begin(self, verb: ReassignWorker, request_id: str) -> None:
        """Begin to move a worker to another role."""
        now_ns = self._clock_ns()
        policy = self._spec_in_role(self._workers[verb.worker], verb.role).policy
        drain_seconds = policy.drain_seconds if verb.drain_seconds is None else verb.drain_seconds
        start_seconds = policy.drain_seconds + policy.stop_seconds + policy.start_seconds
        self._set(
            Reassignment(
                request_id,
                verb.worker,
                self._served_role(verb.worker),
                verb.role,
                now_ns,
                now_ns,
                Patience(drain_seconds=drain_seconds, start_seconds=start_seconds),
            )
        )
        self._requests.begin(verb.worker)
        self._happened.set()

    def drain(self, worker: str) -> None:
        """Send a worker no new requests until it is resumed."""
        self._drained[worker] = self._clock_ns()
        self._write()
        self._changed()

    def end_drain(self, worker: str) -> None:
        """Send it requests again if it was drained."""
        if self._drained.pop(worker, None) is not None:
            self._write()
            self._changed()

    def happened(self) -> None:
        """Report an event that a move may be waiting for."""
        self._happened.set()

    def statuses(self) -> tuple[ReassignStatus, ...]:
        """The metrics of moves, by worker."""
        return self._tally.statuses()

    async def run(self) -> None:
        """Advance the current move until cancelled."""
        try:
            while True:
                self._happened.clear()
                self.advance()
                under_way = self._move is not None and not self._move.step.final
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS if under_way else None):
                        await self._happened.wait()
        finally:
            self._requests.close()

    def advance(self) -> None:
        """Advance the current move as far as possible now."""
        while (move := self._move) is not None and not move.step.final:
            assert self._supervisor is not None
            moved = advance_move(self._with_capability(move), self._observe(move), self._clock_ns())
            if moved.move != move:
                # Written to the journal before it is done, so that a successor resumes from there.
                self._set(moved.move)
            for order in moved.orders:
                if order is MoveOrder.PROBE or not self._unwritten(moved.move):
                    self._obey(order, moved.move)
            if moved.move.step is move.step and moved.move.undone == move.undone:
                return

    def _with_capability(self, move: Reassignment) -> Reassignment:
        """The move, updated with the capability its engine reported."""
        can = self._requests.capability(move.worker)
        drains = move.step in (MoveStep.LEAVING, MoveStep.DRAINING) and not move.undone
        return replace(move, in_place=can.in_place) if can is not None and drains else move

    def _observe(self, move: Reassignment) -> WorkerSight:
        """The worker's state; an engine that reports a completed switch counts as switched."""
        assert self._supervisor is not None
        answer = self._requests.answer(move.worker, move.heading)
        switching = move.in_place and move.step is MoveStep.SWITCHING
        known = self._requests.capability(move.worker) is not None
        observed = self._observer.of(move, answer, asked=known, drained=self._drained)
        unwritten, trouble = self._unwritten(move), self._requests.probe_trouble
        observed = replace(observed, unwritten=unwritten, probe_trouble=trouble)
        if switching and answer[0] is SwitchAnswer.SAID_DONE and observed.role is not move.heading:
            self._supervisor.retag(move.worker, move.heading)
            self._switched(move.worker)
            return replace(observed, role=move.heading)
        return observed

    def _obey(self, order: MoveOrder, move: Reassignment) -> None:
        assert self._supervisor is not None
        match order:
            case MoveOrder.RESTART:
                self._supervisor.handle(move.worker, RestartRequested())
            case MoveOrder.SWITCH:
                self._requests.switch(move.worker, move.heading)
            case MoveOrder.PROBE:
                peers = self._observer.peers(move.worker, move.heading)
                # Whoever drained a worker wants it to rest.
                best = sorted(peers, key=lambda peer: peer in self._drained)
                engines = [self._observer.engine_of(peer) for peer in best]
                self._requests.probe(move.worker, move.heading, engines)

    def _set(self, move: Reassignment) -> None:
        before, self._move = self._move, move
        if move.step is MoveStep.DONE:
            self._roles[move.worker] = move.to_role
            if move.to_role is self._workers[move.worker].role:
                del self._roles[move.worker]
        self._assign(move.worker)
        self._write()
        self._tally.record(before, move)
        self._changed()

    def _unwritten(self, move: Reassignment) -> str:
        """Why a successor would not know of what is ordered; on the way back nothing is held up."""
        return "" if move.undone else self._journal.unwritten

    def _move_of(self, worker: str) -> Reassignment | None:
        move = self._move
        is_under_way = move is not None and move.worker == worker and not move.step.final
        return move if is_under_way else None

    def _served_role(self, worker: str) -> Role:
        """The role of its process; since that began, the node file may have given it another."""
        assert self._supervisor is not None
        return self._supervisor.tag(worker).role

    def _assign(self, name: str) -> None:
        """Set the worker's role for its next start."""
        assert self._supervisor is not None
        role = self.role_of(name)
        self._supervisor.respecify(self._spec_in_role(self._workers[name], role))

    def _write(self) -> None:
        assert self._supervisor is not None
        self._journal.assignments = Assignments(
            roles=dict(self._roles), drained=tuple(self._drained), move=self._move
        )
        self._supervisor.record()
