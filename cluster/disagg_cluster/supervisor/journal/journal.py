"""The journal on disk: what the next daemon must know if this one ends unexpectedly."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from disagg_cluster.host.files.atomic_write import Place, put_aside, write_whole
from disagg_cluster.host.processes import procfs
from disagg_cluster.supervisor.journal.journal_text import (
    NO_ASSIGNMENTS,
    Assignments,
    Entry,
    JournalError,
    Where,
    decode_whole,
    encode,
)
from disagg_exporter.collectors import CollectorHealth, explain
from disagg_exporter.model import CollectorStatus
from disagg_exporter.steps.local_sockets import FileIdentity, identity_of

_MOST_BYTES = 64 << 20
_AHEAD_TICKS = 100
_AHEAD_NS = 10**9
_LONGEST_WAIT_NS = 31 * 86_400 * 10**9


def here() -> Where:
    """Return which processes a pid can mean now."""
    return Where(boot_id=procfs.boot_id(), pid_namespace=procfs.pid_namespace())


def load(path: Path, where: Where) -> tuple[Entry, ...]:
    """Return a journal's workers; none if there is no journal. Raises as `load_whole`."""
    return load_whole(path, where)[0]


def load_whole(path: Path, where: Where) -> tuple[tuple[Entry, ...], Assignments]:
    """Return a journal's workers and assignments; nothing if there is no journal.

    Raises:
        JournalError: It cannot be read or is not to be trusted.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise JournalError("it belongs to another user")
            text = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return (), NO_ASSIGNMENTS
    except OSError as error:
        raise JournalError(f"it cannot be read: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise JournalError(f"it has more than {_MOST_BYTES} bytes")
    entries, assignments = decode_whole(text.decode(errors="replace"), where)
    return tuple(_sound(entry, path.parent) for entry in entries), assignments


def _sound(entry: Entry, folder: Path) -> Entry:
    """Return an entry that can be true of a worker of this run folder.

    Raises:
        JournalError: It names somebody else's log, or an instant in the future.
    """
    now_ns = time.monotonic_ns()
    life = entry.life
    if entry.start_ticks > procfs.now_ticks() + _AHEAD_TICKS:
        raise JournalError(f"{entry.worker} is said to have started in the future")
    if max(life.since_ns, life.last_signal_ns, *life.crashes_ns) > now_ns + _AHEAD_NS:
        raise JournalError(f"{entry.worker} has an instant that is still to come")
    if life.retry_ns > now_ns + _LONGEST_WAIT_NS:
        raise JournalError(f"{entry.worker} would wait for its next start for a month or more")
    log = Path(entry.log_path)
    if not log.is_absolute() and log.parts[-2:] == ("logs", f"{entry.worker}.log"):
        # An older version kept the relative `run_dir` of a node file as it was.
        log = folder.absolute() / "logs" / f"{entry.worker}.log"
    real = os.path.realpath(folder)
    lies_here = any(os.path.realpath(above) == real for above in log.parents)
    if not log.is_absolute() or ".." in log.parts or log.suffix != ".log" or not lies_here:
        raise JournalError(f"{entry.worker} is said to write to {log}, no log of this folder")
    return entry.model_copy(update={"log_path": str(log)})


class Journal:
    """One file, replaced as a whole.

    Args:
        path: Its path, in a folder that exists.
        log: Logs when it cannot be trusted or written, once per occurrence.
        where: What pids mean here.
        at: The path by which it is written; its own by default.
    """

    def __init__(
        self,
        path: Path,
        log: logging.Logger,
        *,
        where: Where | None = None,
        at: Place = Path,
    ) -> None:
        self._path = path
        self._at = at
        self._log = log
        self._where = where or here()
        self.assignments = NO_ASSIGNMENTS
        self._written: str | None = None
        self._identity: FileIdentity | None = None
        self._health = CollectorHealth(
            "journal",
            log,
            recovered="is written again",
            level=logging.ERROR,
        )

    def read(self) -> tuple[Entry, ...]:
        """Return what the previous daemon left; nothing if no journal can be trusted.

        One that is not trusted is kept beside it, `<journal>.rejected`, and logged. A trusted one's
        roles and drains are then in `assignments`, which is written with all entries from now on.
        """
        try:
            entries, self.assignments = load_whole(self._path, self._where)
            return entries
        except JournalError as error:
            why = str(error)
        self._log.warning("the journal %s is not trusted: %s", self._path, why)
        put_aside(self._path, self._log)
        return ()

    def write(self, entries: Sequence[Entry]) -> None:
        """Replace it; a failure is logged, and the write tried again the next time."""
        with self._health.round():
            try:
                self._write(entries)
            except (JournalError, OSError) as error:
                self._written = None
                why = f"cannot write the journal {self._path}: {explain(error)}"
                raise JournalError(f"{why}; workers may be lost if the daemon dies now") from error

    @property
    def is_in_place(self) -> bool:
        """Whether the file at its path is what we wrote; also true before we have written."""
        return self._written is None or identity_of(self._path) == self._identity

    @property
    def unwritten(self) -> str:
        """Why the file on disk is not up to date; empty if it is."""
        return self._health.why

    def restore(self) -> None:
        """Forget what was written, so that the next `write` writes in any case."""
        self._written = None

    def status(self) -> CollectorStatus:
        """The collector `journal`: failed while the file on disk is not up to date."""
        return self._health.status()

    def _write(self, entries: Sequence[Entry]) -> None:
        # Manual assignments end with their worker.
        left = {entry.worker for entry in entries if not entry.is_over}
        text = encode(self._where, entries, self.assignments.of(left))
        if text != self._written:
            # No sync is needed: after a power cut, what is left of it is of another boot.
            place = self._at(self._path)
            write_whole(place, text.encode(), 0o600)
            self._written, self._identity = text, identity_of(place)
