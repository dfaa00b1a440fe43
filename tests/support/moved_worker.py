"""A worker, its router and its daemon in virtual time, during a move to another role.

The daemon may be killed after any write of its journal, before it acts on it. The engine may lie:
it reports that it has switched and continues its old work, or does nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_cluster.lifecycle.reassignment.machine import advance_move, resumed
from disagg_cluster.lifecycle.reassignment.progress import (
    MoveOrder,
    MoveStep,
    Patience,
    Reassignment,
    SwitchAnswer,
    WorkerSight,
)
from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.supervisor.journal.journal_text import (
    Assignments,
    Where,
    decode_whole,
    encode,
)
from disagg_exporter.model import Role

WHERE = Where(boot_id="b", pid_namespace="p")
TICK_SECONDS = 0.25
PATIENCE = Patience(drain_seconds=20, start_seconds=60)


class EngineBehaviour(StrEnum):
    """What an engine does after a move to another role.

    It does its work; or it answers everything and computes nothing, continues its old role's work,
    also computes a token of each prompt as decode engines do, reports no phases, works for a moment
    and hangs, or never becomes ready.
    """

    CORRECT = "correct"
    IDLE = "idle"
    OLD_ROLE = "old_role"
    OLD_ROLE_AND_SCRAPS = "old_role_and_scraps"
    SILENT = "silent"
    NOISE = "noise"
    NEVER_READY = "never_ready"


FAULTY_BEHAVIOURS = tuple(kind for kind in EngineBehaviour if kind is not EngineBehaviour.CORRECT)


class KilledDaemon(Exception):  # noqa: N818 - it is the end of a daemon, not an error
    """The daemon was killed."""


@dataclass
class MovedWorker:
    """One worker that is moved; all seconds are virtual."""

    behaviour: EngineBehaviour = EngineBehaviour.CORRECT
    in_place: bool = False
    from_role: Role = Role.DECODE
    work: bool = True
    drains_in_seconds: float = 1.0
    starts_in_seconds: float = 3.0
    router_seconds: float = 0.3
    drawn: random.Random = field(default_factory=lambda: random.Random(0))
    now_seconds: float = 100.0
    restarts: int = 0
    switches: int = 0
    probes: int = 0
    cut_requests: int = 0
    writes: int = 0
    kill_at: int | None = None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.role = self.from_role
        self.to_role = Role.PREFILL if self.from_role is Role.DECODE else Role.DECODE
        self.state, self.incarnation = WorkerState.READY, 1
        self.ready_at: float | None = None
        self.routed: Role | None = self.from_role
        self.reroute_at: float | None = None
        self.unrouted_at: float | None = None
        self.seconds: dict[tuple[Role, Role], float] = {}
        self.answer = SwitchAnswer.NONE
        now_ns = self._now_ns
        self.move = Reassignment(
            "r1", "w", self.from_role, self.to_role, now_ns, now_ns, PATIENCE,
            in_place=self.in_place,
        )  # fmt: skip
        self.written = self._text(self.move)

    @property
    def _now_ns(self) -> int:
        return round(self.now_seconds * 1e9)

    def run(self, seconds: float = 600.0) -> Reassignment:
        """Advance time until the move has ended."""
        end = self.now_seconds + seconds
        while not self.move.step.final and self.now_seconds < end:
            self.tick()
        return self.move

    def tick(self) -> None:
        """Advance a quarter of a second: the world, then the daemon, or its end and successor."""
        self.now_seconds += TICK_SECONDS
        self._world()
        try:
            self._look()
        except KilledDaemon:
            self._succeed()

    def _look(self) -> None:
        while not self.move.step.final:
            before = self.move
            moved = advance_move(before, self._sight(), self._now_ns)
            if moved.move != before:
                self.move = moved.move
                self._write()
            for order in moved.orders:
                self._obey(order)
            if (moved.move.step, moved.move.undone) == (before.step, before.undone):
                return

    def _write(self) -> None:
        self.written = self._text(self.move)
        self.log.append(f"{self.move.step}{'*' if self.move.undone else ''}")
        self.writes += 1
        if self.kill_at == self.writes:
            raise KilledDaemon

    def _succeed(self) -> None:
        """Start the next daemon on the journal of the one before."""
        said = decode_whole(self.written, WHERE)[1]
        assert said.move is not None
        self.move = resumed(said.move, self._now_ns)
        self.answer = SwitchAnswer.NONE

    @staticmethod
    def _text(move: Reassignment) -> str:
        return encode(WHERE, (), Assignments(move=move))

    def _obey(self, order: MoveOrder) -> None:
        match order:
            case MoveOrder.RESTART:
                self._end_process()
                self.restarts += 1
                self.state = WorkerState.DRAINING
                self.ready_at = self.now_seconds + self.starts_in_seconds
            case MoveOrder.SWITCH:
                self.switches += 1
                self._end_process()
                self.answer = SwitchAnswer.SAID_DONE
                self.role = self.move.heading
            case MoveOrder.PROBE:
                self.probes += 1
                self._work(0.1)

    def _end_process(self) -> None:
        waits = self.unrouted_at is None or self.now_seconds - self.unrouted_at < 0
        if self.routed is not None or waits or self._busy:
            self.cut_requests += 1

    @property
    def _busy(self) -> bool:
        if self.unrouted_at is None:
            return True
        return self.now_seconds - self.unrouted_at < self.drains_in_seconds

    def _world(self) -> None:
        wanted = self.move.routed_as
        if wanted is not self.routed and self.reroute_at is None:
            self.reroute_at = self.now_seconds + self.router_seconds
        if self.reroute_at is not None and self.now_seconds >= self.reroute_at:
            self.reroute_at = None
            self.routed = wanted
            self.unrouted_at = self.now_seconds if wanted is None else None
        if self.ready_at is not None and self.now_seconds >= self.ready_at:
            self.ready_at = None
            self.role, self.incarnation = self.move.assigned_role, self.incarnation + 1
            lies = self.behaviour is EngineBehaviour.NEVER_READY and self.role is self.to_role
            self.state = WorkerState.STARTING if lies else WorkerState.READY
        if self.routed is not None and self.work:
            self._work(TICK_SECONDS * self.drawn.random())

    def _work(self, seconds: float) -> None:
        """Add the engine's GPU time under its recorded role."""
        if self.state is not WorkerState.READY:
            return
        old = self.from_role if self.role is self.to_role else self.to_role
        parts = {self.role: seconds}
        if self.role is self.to_role:
            match self.behaviour:
                case EngineBehaviour.IDLE | EngineBehaviour.NEVER_READY:
                    parts = {}
                case EngineBehaviour.OLD_ROLE:
                    parts = {old: seconds}
                case EngineBehaviour.OLD_ROLE_AND_SCRAPS:
                    parts = {old: seconds, self.role: seconds * self.drawn.uniform(0.0, 0.1)}
                case EngineBehaviour.NOISE:
                    parts = {self.role: 1e-6}
                case _:
                    pass
        for phase, used in parts.items():
            key = (self.role, phase)
            self.seconds[key] = self.seconds.get(key, 0.0) + used

    def _sight(self) -> WorkerSight:
        heading = self.move.heading
        both = [self.seconds.get((heading, phase), 0.0) for phase in (Role.PREFILL, Role.DECODE)]
        silent = self.behaviour is EngineBehaviour.SILENT and heading is self.to_role
        return WorkerSight(
            state=self.state,
            incarnation=self.incarnation,
            role=self.role,
            restarting=self.ready_at is not None,
            routed_as=self.routed,
            idle=self.routed is None and not self._busy,
            phase_seconds=((self.seconds.get((heading, heading), 0.0), sum(both)),),
            tells_phases=not silent,
            answer=self.answer,
            reason="loads its weights",
        )


def ended(worker: MovedWorker) -> tuple[MoveStep, Role, int]:
    """Return how a move ended: its last step, the role, and how many requests it cut off."""
    worker.run()
    return worker.move.step, worker.role, worker.cut_requests
