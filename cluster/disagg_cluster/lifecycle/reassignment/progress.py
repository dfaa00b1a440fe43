"""The state of a worker's move to another role, what is observed for it, and its orders.

A `Reassignment` is a plain value: it is written to disk before anything is done about it, and the
next daemon of the same boot reads it back and continues from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import ConfigDict

from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role

ROLES = (Role.PREFILL, Role.DECODE)
"""The roles between which workers are moved."""


PhaseSeconds = tuple[float, float]
"""GPU-seconds in one phase, and in all phases."""


class MoveStep(StrEnum):
    """What the move waits for: no new work, no work left, serving in its role, new work there.

    `proving` waits for the effect: GPU-seconds of the new role's phase. The last three are final:
    the worker serves in its new role, is back in its old one, or somebody has to look at it.
    """

    LEAVING = "leaving"
    DRAINING = "draining"
    SWITCHING = "switching"
    JOINING = "joining"
    PROVING = "proving"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Whether no step follows."""
        return self in (MoveStep.DONE, MoveStep.ROLLED_BACK, MoveStep.FAILED)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each part of a move may take, in seconds.

    `router` until it has released a worker, or accepted it; `drain` until the last request has
    ended; `start` until it serves in a role; `proof` until the effect shows; `probe` is how long
    routed work is awaited before we send a request of our own, and between two of those.
    """

    router_seconds: float = 15.0
    drain_seconds: float = 60.0
    start_seconds: float = 600.0
    proof_seconds: float = 30.0
    probe_seconds: float = 3.0

    @property
    def move_seconds(self) -> float:
        """How long a whole move may take, without its way back."""
        routed = 2 * self.router_seconds
        return routed + self.drain_seconds + self.start_seconds + self.proof_seconds

    def of(self, step: MoveStep) -> float:
        """How long a step may take."""
        match step:
            case MoveStep.DRAINING:
                return self.drain_seconds
            case MoveStep.SWITCHING:
                return self.start_seconds
            case MoveStep.PROVING:
                return self.proof_seconds
            case _:
                return self.router_seconds


@dataclass(frozen=True, slots=True)
class Reassignment:
    """One move of `worker`, asked for by the request `id`, on its way to `heading`.

    That is `to_role`, or `from_role` once it is `undone`, for the reason `why`. It is in `step`
    since `since_ns` (CLOCK_MONOTONIC, as all instants). `beyond` numbers the process that a restart
    must replace; with `in_place` the engine itself is asked to switch and no process is replaced.
    The seconds of the parts are None until they are known. `base_seconds` are the `phase_seconds`
    when proving began.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: str
    worker: str
    from_role: Role
    to_role: Role
    began_ns: int
    since_ns: int
    patience: Patience
    step: MoveStep = MoveStep.LEAVING
    in_place: bool = False
    undone: bool = False
    why: str = ""
    beyond: int = 0
    probed_ns: int = 0
    base_seconds: tuple[PhaseSeconds, ...] | None = None
    drain_seconds: float | None = None
    downtime_seconds: float | None = None
    effect_seconds: float | None = None

    @property
    def heading(self) -> Role:
        """The role that the worker is heading for."""
        return self.from_role if self.undone else self.to_role

    @property
    def assigned_role(self) -> Role:
        """The role in which a process of the worker is to be started now."""
        before = self.step in (MoveStep.LEAVING, MoveStep.DRAINING)
        if before or self.step is MoveStep.FAILED:
            # A worker drained for the way back still has the role that it could not keep.
            return self.to_role if self.undone and before else self.from_role
        return self.heading

    @property
    def routed_as(self) -> Role | None:
        """The role in which the router is to have it; None while it is to get no requests."""
        joined = (MoveStep.JOINING, MoveStep.PROVING, MoveStep.DONE, MoveStep.ROLLED_BACK)
        if self.step is MoveStep.FAILED:
            return self.from_role
        return self.heading if self.step in joined else None

    @property
    def deadline_seconds(self) -> float:
        """How long its present step may take."""
        return self.patience.of(self.step)

    def into(self, step: MoveStep, now_ns: int) -> Reassignment:
        """Return the same move in its next step."""
        return replace(self, step=step, since_ns=now_ns)


class SwitchAnswer(StrEnum):
    """The answer of an engine that switches in place: none yet, done, or that it cannot."""

    NONE = "none"
    SAID_DONE = "said_done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class WorkerSight:
    """The observed state of the worker.

    `role` is that of its process. `routed_as` is the role in which the router sends it requests,
    None if it sends none. Not `router_known`: it does not tell its engines; not `has_router`: the
    node has none. `idle`: checked since the step began, it had no request, and none was on its way
    to it; else `remaining` says what it still has to do. `phase_seconds` are its total GPU-seconds
    in the phase of `heading`: a pair for each way in which they are known, always in the same
    order; None while they are unknown. Not `tells_phases`: the engine's telemetry does not
    distinguish phases, so that they prove nothing. `probe_trouble` says why a probe did not help,
    `unwritten` why the next daemon would not know of what is done now, and `needed` why users of
    its old role would not be served without it; both are empty if they would.
    """

    state: WorkerState
    incarnation: int
    role: Role
    restarting: bool = False
    paused: bool = False
    being_stopped: bool = False
    reason: str = ""
    routed_as: Role | None = None
    has_router: bool = True
    router_known: bool = True
    idle: bool = False
    remaining: str = "requests still run"
    phase_seconds: tuple[PhaseSeconds, ...] | None = None
    tells_phases: bool = True
    probe_trouble: str = ""
    needed: str = ""
    unwritten: str = ""
    answer: SwitchAnswer = SwitchAnswer.NONE
    answer_text: str = ""


class MoveOrder(StrEnum):
    """What is to be done to the worker; an order carried out twice has one effect.

    `restart` it in its `assigned_role`; ask its engine to `switch` itself; send it a `probe`, a
    request for the phase of its role.
    """

    RESTART = "restart"
    SWITCH = "switch"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Moved:
    """The move after one check, and what to do once it is recorded."""

    move: Reassignment
    orders: tuple[MoveOrder, ...] = ()
