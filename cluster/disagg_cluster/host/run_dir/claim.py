"""One daemon per run folder, even if the folder is removed: a unique name given by the kernel.

A lock file is removed with its folder; a socket in the abstract namespace is in no folder. The
kernel frees its name when the last process that has it open ends.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import leads_to_the_same, own_processes
from disagg_cluster.host.tcp_listeners import holders
from disagg_exporter.steps.local_sockets import peer_credentials

# Connections of unanswered requests before the holder must be found by scanning all processes.
_BACKLOG = 4096
_LOCKS = Path("/proc/locks")
_SOCKETS = Path("/proc/net/unix")
_LISTENS = 0x10000  # __SO_ACCEPTCON of linux/net.h


class RunDirClaim:
    """The name of one run folder, obtained by `take`; `close` releases it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: socket.socket | None = None

    def take(self) -> int | None:
        """Take the name; return the daemon that has it already, if it is for this very folder.

        If anybody else has it (another user, another container on the same network), we do without:
        the lock in the folder still holds.
        """
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            mine.setblocking(False)
            mine.bind(_name(self._folder))
            mine.listen(_BACKLOG)
        except OSError as error:
            mine.close()
            return claim_holder(self._folder) if error.errno == errno.EADDRINUSE else None
        self._socket = mine
        return None

    def answer(self) -> None:
        """Disconnect clients that only asked who we are; to be called now and then."""
        if self._socket is None:
            # A child of a killed daemon also holds its name, until it executes its own program.
            self.take()
        with suppress(OSError):
            while self._socket is not None:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Release the name."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def claim_holder(folder: Path) -> int | None:
    """Return the daemon that has the name of a run folder; None if none has for this folder."""
    name = _name(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            pid, uid = peer_credentials(asking)
        except BlockingIOError:
            # More clients have connected than it has answered: it hangs, or was stopped.
            pid, uid = _listener(name), os.geteuid()
        except OSError:
            return None
    # A listener in another pid namespace has the pid 0 here.
    if pid == 0 or uid not in (0, os.geteuid()) or not procfs.is_alive(pid):
        return None
    # The path may lead to another folder by now.
    return pid if leads_to_the_same(pid, Path(os.path.realpath(folder)).parent) else None


def flock_holder(found: os.stat_result, table: Path = _LOCKS) -> int | None:
    """Return the process with the `flock` of a file; None if none is listed, or it has no pid here.

    Args:
        found: The file.
        table: The kernel's list: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`, the
            first two numbers of the file hexadecimal; the line of a waiting process has an arrow.
    """
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) == 8 and words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[5] == device:
            return int(words[4]) if words[4].isdigit() and words[4] != "0" else None
    return None


def _listener(name: bytes) -> int:
    """Return our user's process that listens at an abstract name; 0 if there is none."""
    socket_name = "@" + os.fsdecode(name[1:])
    try:
        table = _SOCKETS.read_text(errors="replace").splitlines()[1:]
        inodes = frozenset(
            int(words[6])
            for line in table
            if len(words := line.split()) == 8
            and words[7] == socket_name
            and int(words[3], 16) & _LISTENS
        )
        found = list(holders(inodes, own_processes()))
    except OSError:
        return 0
    # A child also has it, until it executes its own program.
    return min(found, key=lambda pid: procfs.start_ticks(pid) or 0, default=0)


def _name(folder: Path) -> bytes:
    place = f"{procfs.pid_namespace()}\n{os.path.realpath(folder)}"
    return b"\0disagg-node-" + hashlib.sha256(os.fsencode(place)).hexdigest()[:32].encode()
