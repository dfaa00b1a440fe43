"""Safe access to paths chosen by others: bounded reads, no escape by links, checks before use."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from pathlib import Path

MAX_LINKS = 40
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would block.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a regular file; links are followed.

    Reading a device or a pipe might never end, or never begin.

    Raises:
        OSError: It cannot be opened or read, is larger, or is not a regular file; see `strerror`.
    """
    return _whole(os.open(path, _FILE | os.O_NOCTTY), str(path), most_bytes)


def read_file_of(pid: int, path: str, most_bytes: int, proc: Path = Path("/proc")) -> bytes:
    """Return a file as a process sees it: below its own root, from its own working directory.

    The path may be chosen by an attacker, and we may be root: no link leads out of that root, only
    a regular file is opened, and no more than `most_bytes` is read.

    Args:
        pid: The process.
        path: The path in the process's view; a relative one is from its working directory.
        most_bytes: Most size of the file.
        proc: Replaceable for tests.

    Raises:
        OSError: It does not exist, is not readable, is larger, or is not a regular file.
    """
    process = proc / str(pid)
    if not path.startswith("/"):
        path = f"{os.readlink(process / 'cwd')}/{path}"  # noqa: PTH115 - of another root
    folders = [os.open(process / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        return _read(folders, deque(path.split("/")), path, most_bytes)
    finally:
        for folder in folders:
            os.close(folder)


def _read(folders: list[int], parts: deque[str], path: str, most_bytes: int) -> bytes:
    """Walk from the last of some open folders; folders passed through are added to them."""
    links = 0
    while parts:
        part = parts.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            if len(folders) > 1:
                os.close(folders.pop())
            continue
        found = os.stat(part, dir_fd=folders[-1], follow_symlinks=False)
        mode = found.st_mode
        if stat.S_ISLNK(mode):
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(part, dir_fd=folders[-1])
            if target.startswith("/"):
                while len(folders) > 1:
                    os.close(folders.pop())
            parts.extendleft(reversed(target.split("/")))
        elif stat.S_ISDIR(mode):
            folders.append(os.open(part, _FOLDER, dir_fd=folders[-1]))
        elif stat.S_ISREG(mode) and found.st_size and not any(parts):
            return _whole(
                os.open(part, _FILE | os.O_NOFOLLOW, dir_fd=folders[-1]), path, most_bytes
            )
        else:
            # Such as files of /proc, which have no size: reading some of them has side effects.
            raise OSError(errno.EINVAL, "it is no regular file", path)
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _whole(descriptor: int, path: str, most_bytes: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        # Another file may have taken its name since it was checked.
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", path)
    return content


def why_no_folder(path: Path) -> str:
    """Return why a path cannot be a folder; empty if it is one, or can become one.

    Permissions are not checked: the user who checks need not be the one who uses it.
    """
    for place in (path, *path.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return "" if error.errno == errno.EACCES else str(error.strerror)
        if not stat.S_ISDIR(mode):
            return "is no folder" if place == path else f"cannot be made: {place} is no folder"
        if place != path and os.statvfs(place).f_flag & os.ST_RDONLY:
            return f"cannot be made: {place} is read-only"
        return ""
    return ""
