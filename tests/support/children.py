"""Small real child processes for the tests of supervision, and ways to wait for them."""

import os
import select
import sys
from contextlib import suppress
from pathlib import Path

from disagg_cluster.demo.nodefile import free_ports

PYTHON = (sys.executable, "-S", "-E", "-c")

SERVER = """
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
page = ('HTTP/1.0 200 OK\\r\\n\\r\\n{"data": [{"id": "%s"}]}' % sys.argv[2]).encode()
while True:
    connection = listener.accept()[0]
    connection.recv(4096)
    connection.sendall(page)
    connection.close()
"""
"""Argv: port, model. Answers 200 and a models page on every path."""

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
"""In front of another script: SIGTERM does nothing."""


def free_port() -> int:
    """Return a free loopback port."""
    return free_ports(1)[0]


def wait_readable(descriptor: int, seconds: float = 20.0) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def is_gone(pid: int, seconds: float = 20.0) -> bool:
    """Wait until a process, ours or not, has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return wait_readable(pidfd, seconds)
    finally:
        os.close(pidfd)


def descriptors() -> set[str]:
    """Return what this process holds open, each with its number."""
    found: set[str] = set()
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the folder itself, while it was read
            found.add(f"{path.name}: {path.readlink()}")
    return found


def children() -> set[int]:
    """Return this process's children, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update(map(int, task.read_text().split()))
    return found


class LinePipe:
    """A named pipe to which children write lines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pipe"
        os.mkfifo(self.path)
        # Held open for both, so that a child which closes its end does not end ours.
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._last = b""

    def line(self, seconds: float = 20.0) -> str:
        while b"\n" not in self._last:
            assert wait_readable(self.descriptor, seconds), "the child said nothing"
            self._last += os.read(self.descriptor, 4096)
        line, _, self._last = self._last.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self.descriptor)
