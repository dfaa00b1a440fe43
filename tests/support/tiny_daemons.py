"""Real daemons over tiny workers, one after the other, each forked from a warm process.

Run as a program, it reads a daemon to fork as a JSON object per line, and writes its pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disagg_cluster.host.processes import procfs
from support.children import free_port, is_gone, wait_readable

NAMES = ("a", "b", "c")

WORKER = f"""\
#!{sys.executable} -SE
import os, socket, sys
def said(name):
    return sys.argv[sys.argv.index(name) + 1]
with open({{starts!r}}, "a") as starts:
    print(os.getpid(), file=starts)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(said("--port"))))
listener.listen()
page = 'HTTP/1.0 200 OK\\r\\n\\r\\n{{{{"data": [{{{{"id": "%s"}}}}]}}}}'
page = (page % said("--served-model-name")).encode()
while True:
    connection = listener.accept()[0]
    connection.recv(4096)
    connection.sendall(page)
    connection.close()
"""
"""Replaces an engine's interpreter: records that it has started, and serves."""


class TinyDaemons:
    """Daemons on one run folder, and the workers that any of them has ever started."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self._starts = folder / "starts"
        self._starts.touch()
        self._program = folder / "engine"
        self._program.write_text(WORKER.format(starts=str(self._starts)))
        self._program.chmod(0o755)
        self._node = {
            "node": "tiny",
            "devices": "cpu",
            "run_dir": str(self.run_dir),
            "listen": {"metrics": "127.0.0.1:0"},
            "intervals": {"health_seconds": 0.05, "pages_seconds": 5.0},
            "restart": {"backoff_first_seconds": 0.02, "crash_limit": 1000},
            "workers": [
                {
                    "name": name,
                    "role": "mixed",
                    "model": name,
                    "python": str(self._program),
                    "port": free_port(),
                    "deadlines": {"start_seconds": 20, "drain_seconds": 0.05, "stop_seconds": 2},
                }
                for name in NAMES
            ],
        }
        self._daemons: list[int] = []
        self._log = (folder / "daemons.log").open("wb")
        self._zygote = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            text=True,
        )

    def start(self, dies_at_write: int | None = None, before: bool = False) -> int:
        """Start a daemon; optionally it dies at a given write of its journal.

        Returns a pidfd, the caller's to close.
        """
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        order = {"node": self._node, "dies_at_write": dies_at_write, "before": before}
        print(json.dumps(order), file=self._zygote.stdin, flush=True)
        daemon = os.pidfd_open(int(self._zygote.stdout.readline()))
        self._daemons.append(os.dup(daemon))
        print(file=self._zygote.stdin, flush=True)
        return daemon

    def started(self) -> int:
        """Return how many processes have ever been started."""
        return len(self._starts.read_text().splitlines())

    def alive(self) -> dict[str, list[int]]:
        """Return the living processes of each worker."""
        found: dict[str, list[int]] = {name: [] for name in NAMES}
        for entry in Path("/proc").iterdir():
            argv = procfs.command_line(int(entry.name)) if entry.name.isdigit() else ()
            if str(self._program) in argv and procfs.is_alive(int(entry.name)):
                found[argv[argv.index("--served-model-name") + 1]].append(int(entry.name))
        return found

    def close(self) -> None:
        """End the forking, every daemon, and then their workers, so that none is restarted."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.close()
        self._zygote.wait()
        for daemon in self._daemons:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(daemon, signal.SIGKILL)
            assert wait_readable(daemon)
            os.close(daemon)
        for pid in [pid for pids in self.alive().values() for pid in pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            assert is_gone(pid)
        self._zygote.stdout.close()
        self._log.close()


def _fork_daemons(lines: Iterator[str]) -> None:
    from disagg_cluster import nodefile
    from disagg_cluster.daemon import foreground
    from disagg_cluster.supervisor.journal import journal

    # Orphans of killed daemons become our children; the kernel reaps them.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in lines:
        order = json.loads(line)
        wait, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                # A daemon that dies at once must not be reaped before its pidfd is open.
                os.close(go)
                os.read(wait, 1)
                os.close(wait)
                _be_a_daemon(order, foreground, journal, nodefile)
            finally:
                os._exit(1)
        os.close(wait)
        print(pid, flush=True)  # noqa: T201 - our standard output is a protocol
        next(lines)
        os.close(go)


def _be_a_daemon(order: dict[str, Any], foreground: Any, journal: Any, nodefile: Any) -> None:
    from disagg_cluster.config.layout import place
    from disagg_cluster.daemon.daemon import Daemon
    from disagg_exporter.devices.source import DeviceKind, choose_devices

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
    logging.info("daemon %d: %s %s", os.getpid(), order["dies_at_write"], order["before"])
    config = nodefile.from_mapping(order["node"], "tiny")
    source = choose_devices(DeviceKind.CPU, nvml=_none, sim=_none).source
    daemon = Daemon(
        config, place(config, source.inventory()), source, config.run_folder, on_failure="leave"
    )
    if order["dies_at_write"] is not None:
        _die_at_write(journal.Journal, order["dies_at_write"], order["before"])
    asyncio.run(foreground.run(daemon, lambda _snapshot: None))
    os._exit(0)


def _die_at_write(kind: Any, number: int, before: bool) -> None:
    write, count = kind.write, 0

    def counted(self: Any, entries: Any) -> None:
        nonlocal count
        count += 1
        if before and count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, entries)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    kind.write = counted


def _none() -> Any:
    raise AssertionError("no devices are asked for")


if __name__ == "__main__":
    _fork_daemons(sys.stdin)
