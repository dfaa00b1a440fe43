"""The log of one worker: opened to append, read from its end, rotated before it fills the disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from disagg_cluster.host.files.private_files import UnsafeDirError, make_inner, open_private
from disagg_exporter.collectors import CollectorHealth, DaemonExecutor, explain
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus

KEPT = 2
"""Number of older parts that are kept: `<log>.1` is the younger."""

_TAIL_BYTES = 64 * 1024
_LINE_CHARACTERS = 2000
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_PROBE = re.compile(
    r'"GET /(?:health|metrics|v1/models|liveness|get_model_info)\S* HTTP/1\.[01]"? 2\d\d\b'
)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


Opener = Callable[[str, int], int]
Copy = Callable[[Path, Path], None]
CHECK_SECONDS = 5.0
_MEGABYTE = 1_000_000


class LogError(DisaggError):
    """A log cannot be written or rotated; the text names the file and the reason.

    Attributes:
        errno: The system's error number.
    """

    def __init__(self, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno


def open_log(log_path: Path, opener: Opener = open_private) -> tuple[FileIO, str]:
    """Open a log to append to; if the disk is full, return a sink that discards, and the reason.

    O_APPEND lets a copy-truncate rotation work under a running engine.

    Args:
        log_path: The file; its folder is created.
        opener: As for the built-in `open`.

    Raises:
        LogError: The file cannot be opened for another reason, or is not ours alone.
    """
    try:
        make_inner(log_path.parent)
        return FileIO(log_path, "a", opener=opener), ""
    except UnsafeDirError as error:
        raise LogError(f"cannot write the log {log_path}: {error}") from error
    except OSError as error:
        why = f"cannot write the log {log_path}: {error.strerror}"
        if error.errno in _FULL:
            return FileIO(os.devnull, "a"), why
        raise LogError(why, error.errno) from error


def last_lines(log_path: Path, count: int, since_bytes: int = 0) -> tuple[str, ...]:
    """Return the last lines of a log, at most `count`, none written before `since_bytes`.

    A server's lines about our own probes are left out (`is_of_probe`). A log truncated since is
    read from its beginning; one that cannot be read has none. Of a line without end only the last
    part is shown.
    """
    try:
        with _reading(log_path) as log:
            size = log.seek(0, os.SEEK_END)
            first = since_bytes if since_bytes <= size else 0
            log.seek(max(first, size - _TAIL_BYTES))
            text = log.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ()
    lines = [line for line in text.splitlines() if not is_of_probe(line)]
    return tuple(line[-_LINE_CHARACTERS:] for line in lines[-count:]) if count > 0 else ()


def is_of_probe(line: str) -> bool:
    """Return whether a line of an access log is about a successful request like our probes.

    An engine's server writes one for each health probe and each scrape of its page: they were nine
    tenths of an idle engine's log.
    """
    return _OF_PROBE.search(line) is not None


def shown_end(log_path: Path, lines: Sequence[str]) -> str:
    """Return the last lines of a log as shown after an event; empty without any."""
    return f"; end of {log_path}:\n  " + "\n  ".join(lines) if lines else ""


def copy_file(source: Path, target: Path) -> None:
    """Copy a file that may grow meanwhile, including what is added; raises `OSError`."""
    target.unlink(missing_ok=True)
    with _reading(source) as log, os.fdopen(open_private(target, _NEW), "wb") as part:
        shutil.copyfileobj(log, part, 1 << 20)
        # Once more for what arrived meanwhile: the first pass may take a second.
        shutil.copyfileobj(log, part, 1 << 20)


def rotate(log_path: Path, limit_bytes: int, copy: Copy = copy_file) -> bool:
    """Move the content of a log to `<log>.1` if longer than `limit_bytes`; return whether it was.

    The file itself stays, as its writer has it open, and is truncated once it is copied. A line
    written between the last read and the truncation is lost.

    Args:
        log_path: The log; a missing one, or one that is no file, is left alone.
        limit_bytes: Its size limit.
        copy: As `copy_file`.

    Raises:
        LogError: There is no room for a copy, even without the older parts; the log is unchanged.
    """
    try:
        # A log may be something other than a file, such as a terminal: that does not grow.
        if not _is_longer(log_path, limit_bytes):
            return False
        for number in range(KEPT, 1, -1):
            if _part(log_path, number - 1).exists():
                _part(log_path, number - 1).replace(_part(log_path, number))
        _copy_to(_part(log_path, 1), log_path, copy)
        with os.fdopen(open_private(log_path, os.O_RDWR), "r+b") as log:
            log.truncate(0)
    except OSError as error:
        raise LogError(f"cannot rotate the log {log_path}: {error.strerror}") from error
    return True


def recover_deleted(pid: int, log_path: Path) -> bool:
    """Move what a process has written to its deleted log to the log's path; return whether it did.

    The process still writes to the deleted file, which is neither visible nor rotated. A line
    written between the copy and the truncation is lost.

    Args:
        pid: The process with this standard output.
        log_path: Where the log was.

    Raises:
        LogError: The log cannot be recreated; what was written is still where it is.
    """
    output = Path(f"/proc/{pid}/fd/1")
    real = f"{os.path.realpath(log_path.parent)}/{log_path.name}"
    try:
        if os.readlink(output) != f"{real} (deleted)" or output.stat().st_size == 0:  # noqa: PTH115
            return False
    except OSError:
        return False
    try:
        make_inner(log_path.parent)
        target = open_private(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(target, "ab") as log, output.open("r+b") as deleted:
            shutil.copyfileobj(deleted, log, 1 << 20)
            deleted.truncate(0)
    except UnsafeDirError as error:
        raise LogError(f"cannot make the log {log_path} anew: {error}") from error
    except OSError as error:
        why = f"cannot make the log {log_path} anew: {error.strerror}"
        raise LogError(why, errno=error.errno) from error
    return True


def _copy_to(part: Path, log_path: Path, copy: Copy) -> None:
    """Copy a log; remove its older parts if there is no room otherwise."""
    try:
        copy(log_path, part)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno not in _FULL or not _part(log_path, 2).exists():
            raise
        for number in range(2, KEPT + 1):
            _part(log_path, number).unlink(missing_ok=True)
        _copy_to(part, log_path, copy)


def _reading(log_path: Path) -> BinaryIO:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(log_path, flags), "rb")


def _is_longer(log_path: Path, limit_bytes: int) -> bool:
    try:
        found = log_path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > limit_bytes


def _part(log_path: Path, number: int) -> Path:
    return log_path.with_name(f"{log_path.name}.{number}")


class Rotation:
    """Checks all logs periodically; each, and each older part, may hold so many megabytes.

    Args:
        logs: The logs of all workers, by name.
        was_cut: Called with the name of a log that was truncated.
        limit_megabytes: Size limit of each.
        writers: The processes that write them, by name; a deleted log is recreated.
        log: Logs one that cannot be rotated, once each time that begins.
        every_seconds: Interval between checks.
    """

    def __init__(
        self,
        logs: Callable[[], Mapping[str, Path]],
        was_cut: Callable[[str], None],
        limit_megabytes: int,
        log: logging.Logger,
        *,
        writers: Callable[[], Mapping[str, int]] = dict,
        every_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._logs = logs
        self._was_cut = was_cut
        self._writers = writers
        self._limit_bytes = limit_megabytes * _MEGABYTE
        self._every_seconds = every_seconds
        self._health = CollectorHealth(
            "log_rotation", log, recovered="all logs are kept short again", level=logging.ERROR
        )

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return how the last check of the logs went, collector `log_rotation`."""
        return (self._health.status(),)

    async def run(self) -> None:
        """Check until cancelled."""
        executor = DaemonExecutor(1, "log-rotation")
        try:
            while True:
                with self._health.round() as problems:
                    await self._check_logs(problems, executor)
                await asyncio.sleep(self._every_seconds)
        finally:
            executor.shutdown(wait=False)

    async def _check_logs(self, problems: dict[str, str], executor: DaemonExecutor) -> None:
        loop = asyncio.get_running_loop()
        writers = self._writers()
        for worker, path in self._logs().items():
            # A hundred megabytes take a moment to copy: not in the loop.
            try:
                check = partial(_check_log, writers.get(worker), path, self._limit_bytes)
                cut = await loop.run_in_executor(executor, check)
            except Exception as error:  # noqa: BLE001 - one log is not to keep the others growing
                problems[worker] = f"{worker}: {explain(error)}"
                continue
            if cut:
                self._was_cut(worker)


def _check_log(pid: int | None, path: Path, limit_bytes: int) -> bool:
    """Return whether the log was truncated."""
    made_anew = pid is not None and not path.exists()
    recovered = pid is not None and recover_deleted(pid, path)
    return rotate(path, limit_bytes) or (recovered and made_anew)
