"""As what a worker was started, where it stands, what can happen to it, and what can be done.

A `Lifecycle` is a plain value: written to disk before a `Start` and read back by the next daemon of
the same boot, it goes on where it was. An alias is what the journal calls a field.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.values import AnyText, HostAddress, Section, root_url
from disagg_exporter.model import Role

TERM: Literal[signal.Signals.SIGTERM] = signal.Signals.SIGTERM
KILL: Literal[signal.Signals.SIGKILL] = signal.Signals.SIGKILL


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * 1_000_000_000)


_MOST_RANKS = 65_536


class WorkerIdentity(Section):
    """As what a process was started: it stays true when the node file says something else."""

    role: Role = Role.UNKNOWN
    gpus: tuple[str, ...] = ()
    model_name: str = ""
    host: HostAddress = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    ranks: int = Field(default=1, ge=1, le=_MOST_RANKS)
    certificate_file: AnyText | None = None

    @property
    def url(self) -> str:
        """The root of its server."""
        return root_url(self.host, self.port, tls=self.certificate_file is not None)


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How to start a process: its arguments and what its environment has beside the inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


class WorkerState(StrEnum):
    """What a worker is said to be doing; the label values of `disagg_worker_state`.

    `backoff` and `failed` may still have a process that is being ended; nothing is started before
    it has gone.
    """

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    BACKOFF = "backoff"
    FAILED = "failed"


class Presence(StrEnum):
    """What is left of the process group: nothing, the leader (and others), others only."""

    GONE = "gone"
    RUNNING = "running"
    LEFTOVER = "leftover"


class Health(StrEnum):
    """The answer of one health probe; undecided if the probe itself could not be made."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    FOREIGN = "foreign"
    NO_ANSWER = "no_answer"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Where one worker stands. `generation` numbers its starts, from 1.

    `since_ns` is when `state` began, `retry_ns` when `backoff` ends. `last_signal` was given to the
    present process at `last_signal_ns`. `up` is the verdict of the last probe, None where none
    could be made. `failed_probes` came one after the other without any work of the engine's in
    between, the first begun at `failing_since_ns`; the last failed for the reason `probe_why`.
    `left_alone` says that it was seen at work since its last good answer. A start is not given up
    before `patient_until_ns`. `served` while it starts: it was ready before, under an earlier
    daemon. `restarts` counts the starts after a crash, `consecutive_crashes` those since it last
    was steady, `crashes_ns` are those inside the window, `refusals` the starts in a row that the
    system refused. `paused_ns` is when somebody asked that it only be observed, None while it is
    supervised. `restarting`: once its process has ended it starts anew.
    """

    state: WorkerState = WorkerState.STOPPED
    presence: Presence = Presence.GONE
    generation: Annotated[int, Field(alias="incarnation")] = 0
    since_ns: int = 0
    retry_ns: int = 0
    last_signal: Annotated[signal.Signals | None, Field(alias="sent")] = None
    last_signal_ns: Annotated[int, Field(alias="sent_ns")] = 0
    up: bool | None = None
    failed_probes: int = 0
    failing_since_ns: int = 0
    probe_why: str = ""
    left_alone: bool = False
    patient_until_ns: int = 0
    served: bool = False
    restarts: int = 0
    consecutive_crashes: Annotated[int, Field(alias="streak")] = 0
    crashes_ns: tuple[int, ...] = ()
    refusals: int = 0
    paused_ns: int | None = None
    restarting: bool = False

    def into(self, state: WorkerState, now_ns: int) -> Lifecycle:
        """The same life in `state`, since now unless it was there before."""
        return self if self.state is state else replace(self, state=state, since_ns=now_ns)


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but time."""


@dataclass(frozen=True, slots=True)
class StartRequested:
    """Somebody wants the worker to run; forgives the crashes of a failed one."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the worker to end; without `drain`, its requests are not waited for."""

    drain: bool = True


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """Somebody wants another process; forgives the crashes. With `drain`, it may end its requests.

    Refused while the worker is being stopped or is paused; asked twice it is one.
    """

    drain: bool = True


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Somebody wants the worker to be observed and nothing else: no signal, no start.

    A stop is still obeyed. Refused while one is under way.
    """


@dataclass(frozen=True, slots=True)
class UnpauseRequested:
    """Somebody wants the worker to be supervised again; one that died meanwhile starts at once."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A `Start` made no process; `refused` if the system is at fault, not the command."""

    generation: int
    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Exited:
    """The leader died; `alone` if it left no others. The code of an adopted one is None."""

    generation: int
    code: int | None
    alone: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """The last of those the leader left behind has died."""

    generation: int


@dataclass(frozen=True, slots=True)
class Probed:
    """A health probe came back.

    It began at `began_ns`, just now if None. `worked_ns` is an instant at or after which the engine
    has finished a step or a request; None if nothing is known of its work.
    """

    generation: int
    health: Health
    why: str
    began_ns: int | None = None
    worked_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Unwatched:
    """Nobody could look for a while: the daemon itself was stopped, or had no time."""


@dataclass(frozen=True, slots=True)
class Drained:
    """A draining worker has no request left."""

    generation: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A new daemon goes on with this life and has looked what is left of its process.

    Not `wanted` is a worker that was asked to stop before. Not `started` is one whose last start
    was decided and written down, but perhaps never made.
    """

    generation: int
    presence: Presence
    wanted: bool = True
    started: bool = True


Event = (
    Tick
    | StartRequested
    | StopRequested
    | RestartRequested
    | PauseRequested
    | UnpauseRequested
    | StartFailed
    | Exited
    | Gone
    | Probed
    | Unwatched
    | Drained
    | Resumed
)


@dataclass(frozen=True, slots=True)
class Start:
    """Make a process, in a session of its own."""

    generation: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the whole group of this generation."""

    generation: int
    signal: signal.Signals


Action = Start | Signal


@dataclass(frozen=True, slots=True)
class Decision:
    """The new life, what to do now, in order, and what to log."""

    life: Lifecycle
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
