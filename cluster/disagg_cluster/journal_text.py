"""What must outlive a daemon, as values and as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from pydantic import Field, ValidationError
from pydantic_core import PydanticSerializationError

from disagg_cluster.command import Command
from disagg_cluster.config.section import Section
from disagg_cluster.life import Life, Presence, WorkerState
from disagg_cluster.values import root_url
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role

VERSION: Final = 1


class JournalError(DisaggError):
    """A journal that is not to be trusted; the text says why."""


class Tag(Section):
    """As what a process was started: it stays true when the node file says something else."""

    role: Role = Role.UNKNOWN
    gpus: tuple[str, ...] = ()
    model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    ranks: int = Field(default=1, ge=1)

    @property
    def url(self) -> str:
        """The root of its server."""
        return root_url(self.host, self.port)


class Entry(Section):
    """One worker: its life and the process it has, or is about to have.

    `pid` is None while a start is only meant, or when there is no process; `start_ticks` is then
    the least a process started by it can have. Both together name a process beyond doubt.
    `environment` is a digest: it may hold secrets.
    """

    worker: str
    life: Life
    pid: int | None
    start_ticks: int
    argv: tuple[str, ...]
    environment: str
    log_path: str
    log_start_bytes: int
    started_timestamp_seconds: float
    tag: Tag
    drain_seconds: float
    stop_seconds: float
    in_front: bool = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to go on with: stopped as it was asked to, and not paused."""
        gone = self.life.presence is Presence.GONE and self.life.state is WorkerState.STOPPED
        return gone and self.life.paused_ns is None

    def runs(self, command: Command) -> bool:
        """Whether its process was started by this very command."""
        return self.argv == command.argv and self.environment == digest(command)


class Where(Section):
    """Which processes a pid in a journal can mean: of this boot, seen from this namespace."""

    boot_id: str
    pid_namespace: str


class _File(Section):
    version: Literal[1]
    where: Where
    workers: tuple[Entry, ...]


def digest(command: Command) -> str:
    """A fingerprint of the variables that a command adds."""
    told = json.dumps(sorted(command.env.items()))
    return hashlib.sha256(told.encode()).hexdigest()


def encode(where: Where, entries: Sequence[Entry]) -> str:
    """The whole text of a journal; what changes with every probe is left out.

    Raises:
        JournalError: A path or an argument is no text.
    """
    lasting = tuple(
        entry.model_copy(update={"life": _lasting(entry.life)})
        for entry in entries
        if not entry.is_over
    )
    try:
        return _File(version=VERSION, where=where, workers=lasting).model_dump_json() + "\n"
    except PydanticSerializationError as error:
        raise JournalError(str(error)) from error


def _lasting(life: Life) -> Life:
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
    """The entries of a journal that was written here.

    Raises:
        JournalError: It is torn, of a version we do not know, or of another boot or namespace.
    """
    try:
        head = json.loads(text)
    except ValueError as error:
        raise JournalError(f"it is torn or no journal: {error}") from error
    version = head.get("version") if isinstance(head, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise JournalError(f"a newer disagg-node wrote it (journal version {version})")
    try:
        file = _File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise JournalError(f"it is torn or no journal: {place}: {first['msg']}") from error
    if file.where.boot_id != where.boot_id:
        raise JournalError("it is from before the last boot, its processes are gone")
    if file.where != where:
        raise JournalError("it was written in another container, its pids mean nothing here")
    names = [entry.worker for entry in file.workers]
    if len(set(names)) != len(names):
        raise JournalError("it names a worker twice")
    return file.workers
