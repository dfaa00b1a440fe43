"""Files that nobody else laid or leads elsewhere: no links, ours, private from the start."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MODE = 0o600


class NotPrivateError(OSError):
    """A file that somebody else laid, or that leads elsewhere; `strerror` says which."""


def open_private(path: Path, flags: int) -> int:
    """Open or make a file without following a link; the descriptor is the caller's to close.

    A file that is wider open than it should be is made private.

    Args:
        path: The file; its folder exists and is trusted.
        flags: As for `os.open`, O_TRUNC not among them: a file is looked at before it is cut.

    Raises:
        NotPrivateError: It is a link, no file, of another user, or has a second name.
        OSError: It cannot be opened.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            why = "it is a symbolic link; remove it"
            raise NotPrivateError(errno.ELOOP, why, str(path)) from None
        raise
    try:
        found = os.fstat(descriptor)
        refused = _why_not_ours(found)
        if refused:
            raise NotPrivateError(errno.EPERM, refused, str(path))
        if found.st_mode & 0o077:
            os.fchmod(descriptor, MODE)
        os.set_blocking(descriptor, True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _why_not_ours(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return os.strerror(errno.EISDIR) if stat.S_ISDIR(found.st_mode) else "it is no file"
    if found.st_uid != os.geteuid():
        return f"it belongs to another user (uid {found.st_uid}); remove it"
    if found.st_nlink > 1:
        return "it has a second name somewhere else (a hard link); remove it"
    return ""
