"""A node whose worker is moved while faults are injected, the programs beside it, and a watch."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.faults import processes
from bench.faults.scene import is_ready
from bench.faults.watch import Samples, Watch
from bench.faults_control.beside import Programs

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import ControlReply, DaemonStatus, ReassignWorker, WorkerView
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role
from support.routed_node import Users, wait_routed, worker_views
from support.running_node import DISAGG_NODE, RunningNode, wait_for
from support.two_planes import Clients

UNTOUCHED = ("prefill-0", "decode-0")

_SILENCE_SECONDS = 60.0
_STATUS_SECONDS = 2.0


class NoAnswerError(DisaggError):
    """No daemon has reported in time how a move ended."""


class MovedNode:
    """Engines behind a router, one of which is moved to and fro, and two are never touched.

    Args:
        folder: The folder for all files; its path must be short.
        node_file: Its node file.
        seed: The seed that moments are drawn by.
        moved: The worker that is moved.
        users: Starts users of the router.
        direct: Starts users of the untouched engines, by their URLs.
        clock: A file with the seconds by which the node's wall clock is ahead; None for none.
        under: A prefix of the daemon's command.
        answer_seconds: Raise an error after this long without an answer about a move.
        start_seconds: How long a worker may take until it is ready.
    """

    def __init__(
        self,
        folder: Path,
        node_file: dict[str, Any],
        seed: str,
        *,
        moved: str,
        users: Callable[[str], Users],
        direct: Callable[[str, str], Clients],
        clock: Path | None = None,
        under: tuple[str, ...] = (),
        answer_seconds: float = 180.0,
        start_seconds: float = 300.0,
    ) -> None:
        self.folder, self.node_file, self.moved, self.clock = folder, node_file, moved, clock
        self.run_dir = Path(node_file["run_dir"])
        self.chance = random.Random(seed)
        self._start = (*under, *DISAGG_NODE, "start")
        self._users, self._answer_seconds = users, answer_seconds
        self._start_seconds = start_seconds
        self.socket = RunFolder(self.run_dir).control
        self.node = self._next()
        engines = [worker["name"] for worker in node_file["workers"]]
        self.ports = {name: int(self.node.workers[name]["port"]) for name in engines}
        self.watch = Watch(self.node.page_url, self.ports, self._known)
        self.direct = direct(*(self.node.url(name) for name in UNTOUCHED))
        self.began_seconds = time.time()
        self.beside: Programs | None = None
        self.stack = contextlib.ExitStack()
        """Faults that last until they are healed."""

    def wait_routed(self) -> None:
        """Wait until all workers are ready and get requests."""
        wait_routed(self.socket, self.node, self._start_seconds)

    def users(self) -> Users:
        """Start users of the router."""
        return self._users(self.node.url("router"))

    def kill_daemon(self) -> None:
        """Kill the daemon with SIGKILL and start the next."""
        self.node.process.kill()
        self.node.process.wait()
        self.watch.another_daemon()
        self.node = self._next()

    def wait_process(self, worker: str) -> None:
        """Wait until the daemon reports a process for a worker."""
        wait_for(lambda: self._pid(worker), f"a process of {worker}", 60.0)

    def core_of(self, worker: str) -> int | None:
        """Return the pid of a real vLLM's engine core; None while there is none."""
        leaders = processes.engines_at(self.port(worker))
        for pid in processes.descendants():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/cmdline").read_bytes()
                if name.startswith(b"VLLM::EngineCore") and os.getsid(pid) in leaders:
                    return pid
        return None

    def signal(self, worker: str, sign: signal.Signals) -> None:
        """Send a signal to the process of a worker, if it has one."""
        pid = self._pid(worker)
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, sign)

    def port(self, worker: str) -> int:
        """Return the port of a worker or of the router."""
        return int(self.node.workers[worker]["port"])

    def views(self) -> dict[str, WorkerView] | None:
        """Return the workers as the daemon reports them; None if it does not answer promptly."""
        try:
            request = new_request(DaemonStatus())
            replies = list(ask(self.socket, request, _STATUS_SECONDS))
        except DisaggError:
            return None
        by_this_daemon = replies[-1].daemon is not None and (
            replies[-1].daemon.pid == self.node.process.pid
        )
        views = {r.worker.worker: r.worker for r in replies if r.worker is not None}
        return views if by_this_daemon else None

    def all_ready(self, page: Samples) -> bool:
        """Return whether a page reports every engine as ready."""
        return all(is_ready(page, name) for name in self.ports)

    def page(self) -> Samples:
        """Return the last page that was read."""
        return self.watch.page

    def move(self, role: Role, request_id: str, *, wait: bool) -> ControlReply:
        """Request a move until a daemon answers; repeated, it is the same request.

        Raises:
            NoAnswerError: No daemon does.
        """
        until, tick = time.monotonic() + self._answer_seconds, threading.Event()
        while time.monotonic() < until:
            request = new_request(
                ReassignWorker(self.moved, role), wait=wait, request_id=request_id
            )
            try:
                *_, final = ask(self.socket, request, _SILENCE_SECONDS)
            except DisaggError:
                tick.wait(0.2)
                continue
            return final
        raise NoAnswerError(f"no daemon reported within {self._answer_seconds:g} s how it ended")

    def all_ports(self) -> list[int]:
        """Return every TCP port of the node and of the programs beside it."""
        router = self.node_file["router"]
        page = int(self.node_file["listen"]["metrics"].rpartition(":")[2])
        own = (page, router["port"], router["metrics_port"])
        beside = () if self.beside is None else self.beside.ports
        return [*own, *self.ports.values(), *beside]

    def sockets(self) -> list[Path]:
        """Return every Unix socket of the daemon."""
        return [path for path in self.run_dir.rglob("*") if path.is_socket()]

    def rest(self, seconds: float) -> None:
        """Wait."""
        threading.Event().wait(seconds)

    def waited_seconds(self) -> float:
        """Return how long the daemon's main thread has waited for a core since its start."""
        try:
            text = Path(f"/proc/{self.node.process.pid}/schedstat").read_text(encoding="ascii")
        except OSError:
            return 0.0
        return int(text.split()[1]) / 1e9

    def role_of(self, worker: str) -> Role:
        """Return the role that a worker serves in."""
        return Role(worker_views(self.socket)[worker].role)

    def untouched_pids(self) -> dict[str, list[int]]:
        """Return the processes of the engines that no fault targets."""
        return {name: processes.engines_at(self.ports[name]) for name in UNTOUCHED}

    def left(self) -> int:
        """End the node; return how many processes of its workers are left."""
        self.node.stop()
        return sum(len(processes.engines_at(port)) for port in self.ports.values())

    def close(self) -> None:
        """End every process that was started."""
        self.stack.close()
        for program in () if self.beside is None else self.beside.both():
            program.close()
        processes.end_all([self.node.process.pid])
        self.node.process.wait()
        processes.end_all(list(processes.descendants()))
        processes.bury(())

    def begin_beside(self) -> None:
        """Start a Prometheus that scrapes the node, and a planner that reads it."""
        self.beside = Programs(self.folder, self.node.page_url)
        self.wait_programs()

    def wait_programs(self) -> None:
        """Wait until Prometheus and planner work, if there are any."""
        for program in () if self.beside is None else self.beside.both():
            wait_for(program.serves, "a program beside the node", 90.0)

    def _pid(self, worker: str) -> int | None:
        views = self.views()
        return None if views is None else views[worker].pid

    def _next(self) -> RunningNode:
        return RunningNode(self.node_file, self.folder, start=self._start)

    def _known(self) -> tuple[int, ...]:
        programs = () if self.beside is None else self.beside.both()
        return (self.node.process.pid, *(program.process.pid for program in programs))
