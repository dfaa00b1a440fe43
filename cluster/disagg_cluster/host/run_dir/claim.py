"""One daemon a run folder, whatever becomes of the folder: a name that the kernel gives only once.

A lock lies in the folder and goes with it; a socket in the abstract namespace lies nowhere. The
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

# So many may ask whom nobody answers before it takes a look at all processes to know who is there.
_BACKLOG = 4096
_LOCKS = Path("/proc/locks")
_SOCKETS = Path("/proc/net/unix")
_LISTENS = 0x10000  # __SO_ACCEPTCON of linux/net.h


class RunDirClaim:
    """The name of one run folder, once `take` was given it; `close` gives it back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: socket.socket | None = None

    def take(self) -> int | None:
        """Take the name; the daemon that has it, if one has it in this very folder.

        Where somebody else has it (another user, another container on the same network), we do
        without: the lock in the folder still holds.
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
        """Hang up on those who only asked who we are; to be called now and then."""
        if self._socket is None:
            # A child of a killed daemon has its name, too, until it runs its own program.
            self.take()
        with suppress(OSError):
            while self._socket is not None:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Give the name back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def claim_holder(folder: Path) -> int | None:
    """The daemon that has the name of a run folder; None if none has, or not of this folder."""
    name = _name(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            pid, uid = peer_credentials(asking)
        except BlockingIOError:
            # More have asked than it has answered: it hangs, or was stopped.
            pid, uid = _listener(name), os.geteuid()
        except OSError:
            return None
    # From another pid namespace its number is 0.
    if pid == 0 or uid not in (0, os.geteuid()) or not procfs.is_alive(pid):
        return None
    # The folder itself may be another one by now.
    return pid if leads_to_the_same(pid, Path(os.path.realpath(folder)).parent) else None


def flock_holder(found: os.stat_result, table: Path = _LOCKS) -> int | None:
    """The process that took the `flock` of a file; None if none is listed, or it has no pid here.

    Args:
        found: The file.
        table: The kernel's list: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`, the
            first two numbers of the file hexadecimal; a line of one who waits has an arrow.
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
    """The process of ours that listens at an abstract name; 0 if it is somebody else's."""
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
    # A child has it, too, until it runs its own program.
    return min(found, key=lambda pid: procfs.start_ticks(pid) or 0, default=0)


def _name(folder: Path) -> bytes:
    place = f"{procfs.pid_namespace()}\n{os.path.realpath(folder)}"
    return b"\0disagg-node-" + hashlib.sha256(os.fsencode(place)).hexdigest()[:32].encode()
