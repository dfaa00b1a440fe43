"""A worker's identity and lifecycle, the events that change it, and the resulting actions.

A `Lifecycle` is a plain value: it is written to disk before a `Start`, and the next daemon of the
same boot reads it back and continues from it. An alias is a field's name in the journal.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.values import AnyText, HostAddress, Section, root_url
from disagg_exporter.model import SECOND_NS, Role

TERM: Literal[signal.Signals.SIGTERM] = signal.Signals.SIGTERM
KILL: Literal[signal.Signals.SIGKILL] = signal.Signals.SIGKILL


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * SECOND_NS)


_MOST_RANKS = 65_536


class WorkerIdentity(Section):
    """The identity with which a process was started; it holds even if the node file changes."""

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
    """How to start a process: its arguments, and the variables added to the inherited ones."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


class WorkerState(StrEnum):
    """What a worker is reported to be doing; the label values of `disagg_worker_state`.

    In `backoff` and `failed` a process may still be ending; nothing is started before it has gone.
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
    """The outcome of one health probe; undecided if the probe itself could not be made."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    FOREIGN = "foreign"
    NO_ANSWER = "no_answer"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The lifecycle of one worker. `generation` numbers its starts, from 1.

    `since_ns` is when `state` began, `retry_ns` when `backoff` ends. `last_signal` was sent to the
    present process at `last_signal_ns`. `up` is the verdict of the last probe, None if it could not
    be made. `failed_probes` are consecutive failures without any work of the engine's in between,
    the first begun at `failing_since_ns`; the last failed for the reason `probe_why`. `left_alone`:
    it was observed at work since its last good answer. A start is not given up before
    `patient_until_ns`. `served` while it starts: it was ready before, under an earlier daemon.
    `restarts` counts the starts after a crash, `consecutive_crashes` those since it last was
    steady, `crashes_ns` are those inside the window, `refusals` the starts in a row that the system
    refused. `paused_ns` is when somebody asked that it only be observed, None while it is
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
        """Return the same life in `state`, since now unless it was in that state before."""
        return self if self.state is state else replace(self, state=state, since_ns=now_ns)


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed."""


@dataclass(frozen=True, slots=True)
class StartRequested:
    """Somebody wants the worker to run; forgives the crashes of a failed one."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the worker to end; without `drain`, its requests are not awaited."""

    drain: bool = True


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """Somebody wants another process; forgives crashes. With `drain`, requests may finish first.

    Refused while the worker is being stopped or is paused; repeated requests count as one.
    """

    drain: bool = True


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Somebody wants the worker to be observed only: no signal, no start.

    A stop is still obeyed. Refused while one is under way.
    """


@dataclass(frozen=True, slots=True)
class UnpauseRequested:
    """Somebody wants the worker supervised again; one that died meanwhile starts at once."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A `Start` made no process; `refused` if the system is at fault, not the command.

    `since_ns` is that of the `Start`, None if it is not known.
    """

    generation: int
    why: str
    refused: bool = False
    since_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """The leader died; `alone` if no other process is left. An adopted one's code is None."""

    generation: int
    code: int | None
    alone: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """The last of the processes that the leader left has died."""

    generation: int


@dataclass(frozen=True, slots=True)
class Probed:
    """A health probe has finished.

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
    """Nothing was watched for a while: the daemon itself was stopped, or had no time."""


@dataclass(frozen=True, slots=True)
class Drained:
    """A draining worker has no request left."""

    generation: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A new daemon continues this life and has checked what is left of its process.

    Not `wanted`: the worker had been asked to stop. Not `started`: its last start was decided and
    recorded, but perhaps never made.
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
    """Start a process in a separate session; it has been waited for since `since_ns`."""

    generation: int
    since_ns: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the whole group of this generation."""

    generation: int
    signal: signal.Signals


Action = Start | Signal


@dataclass(frozen=True, slots=True)
class Decision:
    """The new life, the actions to take now, in order, and what to log."""

    life: Lifecycle
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
