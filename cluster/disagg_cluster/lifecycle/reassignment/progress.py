"""How far a worker's move to another role has come, what is looked at, what is to be done.

A `Reassignment` is a plain value: written to disk before anything is done about it, and read back
by the next daemon of the same boot, which goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import ConfigDict

from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role

ROLES = (Role.PREFILL, Role.DECODE)
"""Between which workers are moved."""


PhaseSeconds = tuple[float, float]
"""GPU-seconds in one phase, and in all phases."""


class MoveStep(StrEnum):
    """What is waited for: that it gets no new work, has none left, serves in its role, gets some.

    `proving` waits for the effect: GPU-seconds of the new role's phase. The last three are ends:
    it serves in its new role, it is back in its old one, or somebody has to look at it.
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
        """Whether nothing follows."""
        return self in (MoveStep.DONE, MoveStep.ROLLED_BACK, MoveStep.FAILED)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each part of a move may take, in seconds.

    `router` until it has let a worker go, or taken it; `drain` until its last request has ended;
    `start` until it serves in a role; `proof` until the effect shows; `probe` is how long routed
    work is waited for before a request of our own is sent, and from one to the next.
    """

    router_seconds: float = 15.0
    drain_seconds: float = 60.0
    start_seconds: float = 600.0
    proof_seconds: float = 30.0
    probe_seconds: float = 3.0

    @property
    def move_seconds(self) -> float:
        """What a whole move may take, without its way back."""
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
    has to leave behind; `in_place`, the engine itself is asked to switch and none is. The seconds
    of the parts are None until they are known. `base_seconds` are the `phase_seconds` of when it
    began to be proven.
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
        """The role that it is on its way to."""
        return self.from_role if self.undone else self.to_role

    @property
    def assigned_role(self) -> Role:
        """The role that a process of the worker is to be started in now."""
        before = self.step in (MoveStep.LEAVING, MoveStep.DRAINING)
        if before or self.step is MoveStep.FAILED:
            # What is drained for the way back still has the role that it could not keep.
            return self.to_role if self.undone and before else self.from_role
        return self.heading

    @property
    def routed_as(self) -> Role | None:
        """The role in which the router is to have it; None while it is to get nothing."""
        joined = (MoveStep.JOINING, MoveStep.PROVING, MoveStep.DONE, MoveStep.ROLLED_BACK)
        if self.step is MoveStep.FAILED:
            return self.from_role
        return self.heading if self.step in joined else None

    @property
    def deadline_seconds(self) -> float:
        """How long its present step may take."""
        return self.patience.of(self.step)

    def into(self, step: MoveStep, now_ns: int) -> Reassignment:
        """The same move in its next step."""
        return replace(self, step=step, since_ns=now_ns)


class SwitchAnswer(StrEnum):
    """What an engine that switches in place has said: nothing yet, done, or that it cannot."""

    NONE = "none"
    SAID_DONE = "said_done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class WorkerSight:
    """How the worker stands.

    `role` is that of its process. `routed_as` is in which role the router sends it requests, None
    if it sends none. Not `router_known` is a router that cannot be asked, not `has_router` a node
    that has none.
    `idle`: looked at since the step began, it had no request, and none was on its way to it.
    `phase_seconds` are its GPU-seconds in the phase of `heading`, ever: a pair for each way in
    which they are known, always in the same order; None while they are not. Not `tells_phases` is
    an engine whose telemetry does not tell phases apart, so that they prove nothing.
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
    phase_seconds: tuple[PhaseSeconds, ...] | None = None
    tells_phases: bool = True
    answer: SwitchAnswer = SwitchAnswer.NONE
    answer_text: str = ""


class MoveOrder(StrEnum):
    """What is to be done to the worker: whoever obeys twice does it once.

    `restart` it in its `assigned_role`; ask its engine to `switch` itself; send it a `probe`, a
    request for the phase of its role.
    """

    RESTART = "restart"
    SWITCH = "switch"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Moved:
    """The move after a look, and what to do once it is written down."""

    move: Reassignment
    orders: tuple[MoveOrder, ...] = ()
