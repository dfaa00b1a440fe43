"""The log file of one worker: opened to append, read from its end, kept from growing for ever."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from disagg_exporter.errors import DisaggError

KEPT = 2
"""How many older parts are kept: `<log>.1` is the younger."""

_TAIL_BYTES = 64 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


Opener = Callable[[str, int], int]
Copy = Callable[[Path, Path], None]


class LogError(DisaggError):
    """A log cannot be written or rotated; the text names the file and the reason."""


def open_log(log_path: Path, opener: Opener | None = None) -> tuple[FileIO, str]:
    """A log to append to; if the disk is full, a sink for nothing, and why.

    O_APPEND lets a copy-truncate rotation work under a running engine.

    Args:
        log_path: The file; its folder is made.
        opener: As for the built-in `open`.

    Raises:
        LogError: The file cannot be opened for another reason.
    """
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        return FileIO(log_path, "a", opener=opener), ""
    except OSError as error:
        why = f"cannot write the log {log_path}: {error.strerror}"
        if error.errno in _FULL:
            return FileIO(os.devnull, "a"), why
        raise LogError(why) from error


def last_lines(log_path: Path, count: int, since_bytes: int = 0) -> tuple[str, ...]:
    """The last lines of a log, at most `count`, none written before `since_bytes`.

    A log cut shorter meanwhile is read from its beginning; one that cannot be read has none.
    """
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            first = since_bytes if since_bytes <= size else 0
            log.seek(max(first, size - _TAIL_BYTES))
            text = log.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-count:]) if count > 0 else ()


def copy_file(source: Path, target: Path) -> None:
    """Copy a file that may grow meanwhile, up to what it holds at the end; raises `OSError`."""
    with source.open("rb") as log, target.open("wb") as part:
        shutil.copyfileobj(log, part, 1 << 20)
        # Once more for what came meanwhile: the first pass may take a second.
        shutil.copyfileobj(log, part, 1 << 20)


def rotate(log_path: Path, limit_bytes: int, copy: Copy = copy_file) -> bool:
    """Move what a log holds to `<log>.1` if it is longer than `limit_bytes`; say whether.

    The file itself stays, as its writer has it open, and is cut to nothing once it is copied. A
    line written between the last look and the cut is lost.

    Args:
        log_path: The log; one that is not there, or no file, is left alone.
        limit_bytes: How long it may grow.
        copy: As `copy_file`.

    Raises:
        LogError: There is no room for a copy, even without the older parts; the log is as it was.
    """
    try:
        # A log may be something else than a file, such as a terminal: that does not grow.
        if not log_path.is_file() or log_path.stat().st_size <= limit_bytes:
            return False
        for number in range(KEPT, 1, -1):
            if _part(log_path, number - 1).exists():
                _part(log_path, number - 1).replace(_part(log_path, number))
        _copy_to(_part(log_path, 1), log_path, copy)
        os.truncate(log_path, 0)
    except OSError as error:
        raise LogError(f"cannot rotate the log {log_path}: {error.strerror}") from error
    return True


def _copy_to(part: Path, log_path: Path, copy: Copy) -> None:
    """Copy a log; its older parts go if there is no room otherwise."""
    try:
        copy(log_path, part)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno not in _FULL or not _part(log_path, 2).exists():
            raise
        for number in range(2, KEPT + 1):
            _part(log_path, number).unlink(missing_ok=True)
        _copy_to(part, log_path, copy)


def _part(log_path: Path, number: int) -> Path:
    return log_path.with_name(f"{log_path.name}.{number}")
