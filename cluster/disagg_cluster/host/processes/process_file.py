"""A file as a process sees it: below its own root, from its own working directory.

Whoever chose the path may be hostile, and we may be root: no link leads out of that root, nothing
but a regular file is opened, and no more of it is read than was asked for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from pathlib import Path

MAX_LINKS = 40
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a pipe would be waited for.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_file_of(pid: int, path: str, most_bytes: int, proc: Path = Path("/proc")) -> bytes:
    """Return a file that a process has named.

    Args:
        pid: The process.
        path: As it was told; a relative one counts from its working directory.
        most_bytes: How large the file may be.
        proc: Seam.

    Raises:
        OSError: It is not there, not ours to read, larger, or no regular file.
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
    """Walk from the last of some open folders; those passed through are added to them."""
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
            return _whole(os.open(part, _FILE, dir_fd=folders[-1]), path, most_bytes)
        else:
            # Such as of /proc, which has no size: the mere reading of some there takes things away.
            raise OSError(errno.EINVAL, "is no regular file", path)
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _whole(descriptor: int, path: str, most_bytes: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        # Another may have taken its name since it was looked at.
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return content
