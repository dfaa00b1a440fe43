"""Files and folders that only we can create or replace."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from disagg_exporter.errors import DisaggError

_FILE_MODE = 0o600
_DIR_MODE = 0o700
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPrivateError(OSError):
    """A file that another user created, or a link; `strerror` says which."""


def open_private(path: Path | str, flags: int) -> int:
    """Open or create a file without following a link; the caller closes the descriptor.

    Too permissive modes are made private.

    Args:
        path: The file; its folder exists and is trusted.
        flags: As for `os.open`, without O_TRUNC: a file is checked before it is truncated.

    Raises:
        NotPrivateError: It is a link, no file, of another user, or has a second name.
        OSError: It cannot be opened.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, _FILE_MODE)
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
            os.fchmod(descriptor, _FILE_MODE)
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


class UnsafeDirError(DisaggError):
    """A folder through which another user could redirect us; the text has reason and remedy."""


def make_private(path: Path, is_ours: Callable[[str], bool]) -> tuple[str, ...]:
    """Create a folder of our own, or check the existing one; return what was changed.

    Links in the path are followed if we or root created them. A folder that others may enter is
    closed to them if it only holds our files: a system folder, named by mistake, is left as it is,
    and refused if others may write into it.

    Args:
        path: Absolute, or from the current folder.
        is_ours: Whether a name is one that we give to a file in such a folder.

    Raises:
        UnsafeDirError: It, a link to it or something in it belongs to another user, anybody may
            replace it, or it is not a folder.
        OSError: It cannot be created or checked.
    """
    path = path.absolute()
    _check_path(path)
    path.mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)
    real = path.resolve(strict=True)
    _check_path(real)
    descriptor = os.open(real, FOLDER_FLAGS)
    try:
        return _close_to_others(path, descriptor, is_ours)
    finally:
        os.close(descriptor)


def make_inner(path: Path) -> None:
    """Create a folder inside a private one, or close it to others.

    If it is a link of ours, to another disk for instance, its target is left as it is.

    Raises:
        UnsafeDirError: It, or a link in its place, belongs to another user, others may write into a
            link's target, or it is not a folder.
        OSError: It cannot be created or checked.
    """
    path.mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)
    if path.is_symlink():
        _check_path(path.absolute())
        _check_path(path.resolve(strict=True))
    descriptor = os.open(path.resolve(strict=True), FOLDER_FLAGS)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            _check_foreign_folder(path, found)
        elif path.is_symlink() and found.st_mode & _OTHERS_WRITE:
            raise UnsafeDirError(f"others may write into {path}; `chmod go-w` it")
        elif found.st_mode & 0o077 and not path.is_symlink():
            os.fchmod(descriptor, _DIR_MODE)
    finally:
        os.close(descriptor)


def _check_path(path: Path) -> None:
    """Refuse a path on which another user can put a different folder in place of ours."""
    trusted = {_ROOT, os.geteuid()}
    for part in (*reversed(path.parents), path):
        try:
            found = part.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid not in trusted:
                raise UnsafeDirError(
                    f"{_location(part, path)} is a link that another user laid "
                    f"(uid {found.st_uid}); remove it, or choose another folder"
                )
        elif part != path and _anybody_may_replace(part, found):
            raise UnsafeDirError(
                f"anybody may replace what is in {part} (mode {found.st_mode & 0o7777:04o}), so "
                f"{path} is not ours alone; choose another folder, or `chmod o-w {part}`"
            )


def _anybody_may_replace(part: Path, found: os.stat_result) -> bool:
    open_to_all = bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    return open_to_all and not _is_volume(part, found)


def _is_volume(path: Path, found: os.stat_result) -> bool:
    """Return whether an orchestrator mounted it for a container: root's, open to all in it."""
    return found.st_uid == _ROOT and not found.st_mode & stat.S_ISVTX and path.is_mount()


def _close_to_others(
    path: Path, descriptor: int, is_ours: Callable[[str], bool]
) -> tuple[str, ...]:
    found = os.fstat(descriptor)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        return _check_foreign_folder(path, found)
    if not mode & 0o077:
        return ()
    if not all(map(is_ours, os.listdir(descriptor))):
        holds = f"{path} is open to other users (mode {mode:04o}) and holds other things than ours"
        if mode & _OTHERS_WRITE:
            raise UnsafeDirError(f"{holds}; choose a folder of its own")
        return (f"{holds}: it stays so, and others may see the names in it",)
    os.fchmod(descriptor, _DIR_MODE)
    # Closed first: from here on no other process can add files.
    foreign = _foreign_entry(descriptor) if mode & _OTHERS_WRITE else None
    if foreign is not None:
        raise UnsafeDirError(
            f"{path} was open to other users, and {foreign} in it belongs to one of them; remove "
            "what is not yours, or choose another folder"
        )
    return (f"{path} was open to other users (mode {mode:04o}) and is closed to them now",)


def _check_foreign_folder(path: Path, found: os.stat_result) -> tuple[str, ...]:
    """Return whether another owner's folder will do: root's, if only we can write into it."""
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != _ROOT:
        raise UnsafeDirError(
            f"{path} belongs to another user (uid {found.st_uid}); choose a folder of your own"
        )
    if not mode & _OTHERS_WRITE:
        raise UnsafeDirError(f"{path} belongs to root, and we may not write into it")
    if not _is_volume(path, found):
        raise UnsafeDirError(
            f"{path} belongs to root, and others may write into it (mode {mode:04o}); choose a "
            f"folder of your own, or `chown {os.geteuid()} {path}`"
        )
    return (f"{path} is a volume of root's that every user of this container may write into",)


def _foreign_entry(descriptor: int) -> str | None:
    trusted = (_ROOT, os.geteuid())
    with os.scandir(descriptor) as inside:
        for entry in inside:
            if entry.stat(follow_symlinks=False).st_uid not in trusted:
                return entry.name
    return None


def _location(part: Path, path: Path) -> str:
    return str(path) if part == path else f"{part}, on the way to {path},"
