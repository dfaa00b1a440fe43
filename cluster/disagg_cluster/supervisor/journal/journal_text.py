"""What must outlive a daemon, as values and as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticSerializationError

from disagg_cluster.config.values import AnyText, Section, Text
from disagg_cluster.lifecycle.reassignment.progress import Reassignment
from disagg_cluster.lifecycle.state import (
    KILL,
    TERM,
    LaunchCommand,
    Lifecycle,
    Presence,
    WorkerIdentity,
    WorkerState,
)
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role

VERSION: Final = 2
"""Version 2 adds `assignments`; without any a journal is still written as version 1."""

_MOST = 2**63
_LONGEST_SECONDS = 1e9


class JournalError(DisaggError):
    """A journal that is not to be trusted; the text says why."""


class Entry(Section):
    """One worker: its lifecycle and the process it has, or is about to have.

    `pid` is None while a start is only planned, or if there is no process; `start_ticks` is then
    the least that a process so started can have. Both together identify a process beyond doubt.
    `environment` is a digest: it may hold secrets.
    """

    worker: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    life: Lifecycle
    # Pid 1 leads no worker's session: it is the first process of the machine or the container.
    pid: Annotated[int, Field(gt=1, lt=2**31)] | None
    start_ticks: int = Field(ge=0, lt=2**63)
    argv: tuple[AnyText, ...]
    environment: str
    log_path: Text
    log_start_bytes: int = Field(ge=0, lt=2**63)
    started_timestamp_seconds: float = Field(allow_inf_nan=False)
    tag: WorkerIdentity
    drain_seconds: float = Field(ge=0, le=_LONGEST_SECONDS, allow_inf_nan=False)
    stop_seconds: float = Field(ge=0, le=_LONGEST_SECONDS, allow_inf_nan=False)
    in_front: bool = False

    @field_validator("life")
    @classmethod
    def _is_a_life(cls, life: Lifecycle) -> Lifecycle:
        if life.last_signal not in (None, TERM, KILL):
            raise ValueError(f"no worker is sent {life.last_signal}")
        for name, value in _numbers(life):
            if not 0 <= value <= _MOST:
                raise ValueError(f"{name} is {value}")
        return life

    @property
    def command_digest(self) -> str:
        """A fingerprint of the arguments and variables that started its process."""
        text = json.dumps([self.argv, self.environment])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to continue: stopped as requested, and not paused."""
        gone = self.life.presence is Presence.GONE and self.life.state is WorkerState.STOPPED
        return gone and self.life.paused_ns is None

    def runs(self, command: LaunchCommand) -> bool:
        """Whether its process was started by exactly this command."""
        return self.argv == command.argv and self.environment == digest(command)


_WorkerName = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]


class Assignments(Section):
    """Manual changes to the workers besides pauses; they hold until the workers are stopped.

    `roles` differ from the node file's, `drained` workers get no requests, `move` is the last
    worker's change to another role, finished or under way.
    """

    roles: Mapping[_WorkerName, Annotated[Role, Field(strict=False)]] = {}
    drained: tuple[_WorkerName, ...] = ()
    move: Reassignment | None = None

    @property
    def nothing(self) -> bool:
        """Whether there are none."""
        return not (self.roles or self.drained or self.move)

    @property
    def binding(self) -> frozenset[str]:
        """The workers whose next start depends on them; a finished move binds none by itself."""
        move = self.move
        moving = () if move is None or move.step.final else (move.worker,)
        return frozenset((*self.roles, *self.drained, *moving))

    def of(self, workers: Collection[str]) -> Assignments:
        """Return those that concern these workers."""
        roles = {name: role for name, role in self.roles.items() if name in workers}
        drained = tuple(name for name in self.drained if name in workers)
        move = self.move if self.move is not None and self.move.worker in workers else None
        return Assignments(roles=roles, drained=drained, move=move)


NO_ASSIGNMENTS = Assignments()


class Where(Section):
    """Which processes a journal's pids can mean: those of this boot, seen from this namespace."""

    boot_id: str
    pid_namespace: str

    def why_foreign(self, boot_id: str, pid_namespace: str) -> str:
        """Return why what was written there means nothing here; empty if it does."""
        if boot_id != self.boot_id:
            return "it is from before the last boot, its processes are gone"
        if pid_namespace != self.pid_namespace:
            return "it was written in another container, its pids mean nothing here"
        return ""


class _JournalDocument(Section):
    version: Literal[1, 2]
    where: Where
    workers: tuple[Entry, ...]
    assignments: Assignments = NO_ASSIGNMENTS


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a text: where, and what."""
    first = error.errors(include_url=False)[0]
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{'.'.join(map(str, first['loc']))} is not known here: a newer version's, perhaps"
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _numbers(life: Lifecycle) -> Iterator[tuple[str, int]]:
    """Yield the numbers of a life by name; none of them is ever negative."""
    for field in fields(life):
        value = getattr(life, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int) and not isinstance(each, bool):
                yield field.name, each


def digest(command: LaunchCommand) -> str:
    """A fingerprint of the variables that a command adds."""
    text = json.dumps(sorted(command.env.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def encode(
    where: Where, entries: Sequence[Entry], assignments: Assignments = NO_ASSIGNMENTS
) -> str:
    """Return the whole text of a journal; what changes with every probe is left out.

    Without assignments, older daemons can read it, too.

    Raises:
        JournalError: A path or an argument is no text.
    """
    lasting = tuple(
        entry.model_copy(update={"life": _lasting(entry.life)})
        for entry in entries
        if not entry.is_over
    )
    plain = assignments.nothing
    document = _JournalDocument(
        version=1 if plain else VERSION, where=where, workers=lasting, assignments=assignments
    )
    left_out = {"assignments"} if plain else set()
    try:
        return f"{document.model_dump_json(by_alias=True, exclude=left_out)}\n"
    except PydanticSerializationError as error:
        raise JournalError(str(error)) from error


def _lasting(life: Lifecycle) -> Lifecycle:
    return replace(
        life,
        up=None,
        failed_probes=0,
        failing_since_ns=0,
        probe_why="",
        left_alone=False,
        patient_until_ns=0,
    )


def decode(text: str, where: Where) -> tuple[Entry, ...]:
    """Return the entries of a journal that was written here; raises as `decode_whole`."""
    return decode_whole(text, where)[0]


def decode_whole(text: str, where: Where) -> tuple[tuple[Entry, ...], Assignments]:
    """Return the entries and assignments of a journal that was written here.

    Raises:
        JournalError: It is torn, of a version we do not know, or of another boot or namespace.
    """
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"it is torn or no journal: {error}") from error
    version = head.get("version") if isinstance(head, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise JournalError(f"a newer disagg-node wrote it (journal version {version})")
    try:
        file = _JournalDocument.model_validate_json(text)
    except ValidationError as error:
        raise JournalError(f"it is torn or no journal: {first_problem(error)}") from error
    if why := where.why_foreign(file.where.boot_id, file.where.pid_namespace):
        raise JournalError(why)
    names = [entry.worker for entry in file.workers]
    if len(set(names)) != len(names):
        raise JournalError("it names a worker twice")
    return file.workers, file.assignments
