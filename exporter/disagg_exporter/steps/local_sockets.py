"""Local sockets: creates or takes over a listening file, and identifies peers."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from disagg_exporter.errors import DisaggError

LONGEST_PATH_BYTES = 107
BACKLOG = 64

FileIdentity = tuple[int, int]
"""Device and inode of a path's file, to detect that it was replaced."""


class StepsSocketError(DisaggError):
    """The socket for an engine's steps cannot be created; the text has the path and the cause."""


def listening_socket(
    path: Path, mode: int = 0o600, kind: socket.SocketKind = socket.SOCK_SEQPACKET
) -> socket.socket:
    """Return a non-blocking socket that listens at `path` with these permissions.

    A dead daemon's file is replaced, a live one's is not. Raises `StepsSocketError`.
    """
    if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
        raise StepsSocketError(
            f"{path}: too long for a socket ({LONGEST_PATH_BYTES} bytes at most); "
            "choose a shorter run directory, `run_dir:` in the node file"
        )
    listening = socket.socket(socket.AF_UNIX, kind)
    try:
        listening.setblocking(False)
        _remove_stale(path, kind)
        # On the unbound socket, so that the file never exists with wider permissions.
        os.fchmod(listening.fileno(), mode)
        listening.bind(os.fspath(path))
        if mode & 0o077:
            _widen(path, mode)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise StepsSocketError(f"{path}: cannot listen: {error.strerror}") from error
    except StepsSocketError:
        listening.close()
        raise
    return listening


def identity_of(path: Path) -> FileIdentity | None:
    """Return the file at a path, links not followed; None if missing or inaccessible."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def unlink_if_same(path: Path, identity: FileIdentity | None) -> None:
    """Remove our file at a path, unless it was replaced."""
    if identity is not None and identity_of(path) == identity:
        with suppress(OSError):
            path.unlink()


def _widen(path: Path, mode: int) -> None:
    """Set permissions that the umask removed, only on the socket, not on a replacement."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise StepsSocketError(f"{path}: somebody put something else in the socket's place")
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


def _remove_stale(path: Path, kind: socket.SocketKind) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StepsSocketError(f"{path}: there is a file that is no socket; move it away")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise StepsSocketError(f"{path}: another daemon listens there; stop it first")


_CREDENTIALS = struct.Struct("3i")


class PeerLink(Protocol):
    """A connected local socket, or asyncio's wrapper of one."""

    def fileno(self) -> int:
        """Return its descriptor; below 0 once it is closed."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Like `socket.getsockopt`."""


def peer_pid(link: socket.socket) -> int:
    """Return the connected process's pid; 0 if its pid namespace is not visible to us."""
    return peer_credentials(link)[0]


def peer_credentials(link: PeerLink) -> tuple[int, int]:
    """Return the connected process's pid, as `peer_pid` does, and its user id."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return int(pid), int(uid)


def in_session_of(leader_pid: int, pid: int, proc_root: Path | str = "/proc") -> bool:
    """Return whether `pid` is the session leader `leader_pid` itself or in its session.

    A process that is gone or invisible to us (pid 0) is in no session.
    """
    if pid <= 0 or leader_pid <= 0:
        return False
    if pid == leader_pid:
        return True
    try:
        line = (Path(proc_root) / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    # pid (name) state ppid pgrp session …; the name may contain anything, even brackets.
    fields = line.rpartition(")")[2].split()
    return len(fields) > 3 and fields[3] == str(leader_pid)
