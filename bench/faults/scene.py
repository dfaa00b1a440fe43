"""A node under faults: untouched engines, victims beside them, a load, and a watch."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.faults import processes
from bench.faults.full_pipe import FullPipe
from bench.faults.small_disk import small_disk
from bench.faults.watch import Samples, Watch

from support.children import free_port
from support.two_planes import MODEL, Clients, Node

if TYPE_CHECKING:
    from bench.faults.campaigns import Campaign

ROOT = Path(__file__).parents[2]
UNTOUCHED = {"prefill-0": "prefill", "decode-0": "decode"}
LOAD = 2
DISK = "d"
START_SECONDS = 60.0

PROGRAM = f"""\
#!{sys.executable}
import resource, sys
# Children inherit the limits that a fault sets on the daemon, so the engine lifts its own.
for limit in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE):
    most = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (most, most))
sys.path.insert(0, {str(ROOT)!r})
from bench.faults.engine import main
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """A worker that faults are aimed at."""

    name: str
    port: int
    control: Path

    @property
    def url(self) -> str:
        """The root URL of its server."""
        return f"http://127.0.0.1:{self.port}"

    def misbehave(self, **what: Any) -> None:
        """Set how its engine misbehaves; with no arguments, stop that."""
        self.control.write_text(json.dumps(what), encoding="utf-8")

    @property
    def pid(self) -> int | None:
        """The pid of its engine."""
        return next(iter(processes.engines_at(self.port)), None)

    def kill(self, sign: int) -> None:
        """Send its engine a signal."""
        for pid in processes.engines_at(self.port):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)


def restarts(page: Samples, worker: str) -> float:
    """Return how often a worker was restarted."""
    return page.get(f'disagg_worker_restarts_total{{worker="{worker}"}}', 0.0)


def is_ready(page: Samples, worker: str) -> bool:
    """Return whether a worker is ready."""
    return page.get(f'disagg_worker_state{{state="ready",worker="{worker}"}}', 0.0) == 1 or (
        page.get(f'disagg_worker_state{{worker="{worker}",state="ready"}}', 0.0) == 1
    )


def is_up(page: Samples, engine: str) -> bool:
    """Return whether an engine answers its probes."""
    named = f'engine="{engine}"'
    return any(
        value == 1
        for series, value in page.items()
        if series.startswith("disagg_engine_up{") and named in series
    )


def success(page: Samples, collector: str) -> float | None:
    """Return whether a collector's last round succeeded; None if the page does not show it."""
    return page.get(f'disagg_collector_success{{collector="{collector}"}}')


STATES: Mapping[str, Callable[[Samples, Samples, str], bool]] = {
    "a restart": lambda before, now, victim: (
        restarts(now, victim) > restarts(before, victim) or not is_ready(now, victim)
    ),
    "an engine that is not up": lambda _before, now, victim: not is_up(now, victim),
    "a journal that fails": lambda _before, now, _victim: success(now, "journal") == 0.0,
    "a page": lambda _before, _now, _victim: True,
}
"""The states of a victim that a page can report, by the page before the fault and the new one."""


class NeverReadyError(Exception):
    """The node of a campaign did not start; the text is the end of its log."""


class Scene:
    """One node, from its first daemon to its last."""

    def __init__(
        self, folder: Path, seed: str, victims: int, output: FullPipe | None = None
    ) -> None:
        self.folder = folder
        self.disk = folder / DISK
        """The folder that holds the run folder, and nothing else."""
        self.disk.mkdir(mode=0o700, exist_ok=True)
        self.chance = random.Random(seed)
        self.untouched: dict[str, int] = {}
        self.victims: list[Victim] = []
        self.node_file = self._node_file(victims)
        self.node = Node(self.node_file, folder, output=None if output is None else output.writing)
        ports = {worker["name"]: worker["port"] for worker in self.node_file["workers"]}
        self.ports = ports
        self.watch = Watch(self.node.daemon.page_url, ports, self._known)
        urls = (f"http://127.0.0.1:{ports[name]}" for name in UNTOUCHED)
        prefill, decode = urls
        self.clients = Clients(prefill, decode, count=LOAD)

    @property
    def run_dir(self) -> Path:
        """The run folder of the daemons."""
        return self.node.run_dir

    @property
    def daemon(self) -> int:
        """The pid of the present daemon."""
        return self.node.daemon.process.pid

    def all_ready(self, page: Samples) -> bool:
        """Return whether every worker is ready, and its engine up."""
        return all(is_ready(page, name) for name in self.ports)

    def untouched_pids(self) -> dict[str, int | None]:
        """Return the processes of the engines that no fault targets."""
        return {
            name: next(iter(processes.engines_at(self.ports[name])), None) for name in UNTOUCHED
        }

    def kill_daemon(self) -> None:
        """Kill the daemon with SIGKILL."""
        self.node.end_daemon(signal.SIGKILL)

    def next_daemon(self, **changes: Any) -> None:
        """Start the next daemon; if it does not start, later observations show it."""
        self.watch.another_daemon()
        self.node.next_daemon(**changes)

    def leave(self) -> None:
        """Ask the daemon to exit and leave its engines running."""
        self.node.end_daemon(signal.SIGTERM)

    def rest(self, seconds: float) -> None:
        """Wait."""
        threading.Event().wait(seconds)

    def _known(self) -> tuple[int, ...]:
        return (self.daemon,)

    def _node_file(self, victims: int) -> dict[str, Any]:
        program = self.folder / "engine"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        roles = {**UNTOUCHED, **{f"victim-{n}": "mixed" for n in range(victims)}}
        workers = [self._worker(name, role, str(program)) for name, role in roles.items()]
        return {
            "node": "faults",
            "devices": "sim",
            "sim_devices": len(roles),
            "run_dir": str(self.disk / "run"),
            "on_sigterm": "leave",
            "listen": {"metrics": f"127.0.0.1:{free_port()}"},
            "restart": {
                "backoff_first_seconds": 0.2,
                "backoff_max_seconds": 1.0,
                "crash_limit": 1000,
                "hang_probes": 4,
            },
            "workers": workers,
        }

    def _worker(self, name: str, role: str, program: str) -> dict[str, Any]:
        port, control = free_port(), self.folder / f"{name}.control"
        if name not in UNTOUCHED:
            self.victims.append(Victim(name, port, control))
        control.write_text("{}")
        worker: dict[str, Any] = {
            "name": name,
            "engine": "vllm",
            "python": program,
            "role": role,
            "model": MODEL,
            "gpus": 1,
            "port": port,
            "env": {
                "FAULTS_NAME": name,
                "FAULTS_ROLE": role,
                "FAULTS_CONTROL": str(control),
                "FAULTS_TOTALS": str(self.totals(name)),
            },
            "deadlines": {"start_seconds": 60, "drain_seconds": 2, "stop_seconds": 5},
        }
        if role != "mixed":
            kv = {"connector": "NixlConnector", "side_channel_port": free_port()}
            worker["kv_transfer"] = kv
        return worker

    def totals(self, name: str) -> Path:
        """Return where an engine writes its totals."""
        return self.folder / f"{name}.totals"


@contextlib.contextmanager
def scene(seed: str, victims: int, campaign: Campaign | None = None) -> Iterator[Scene]:
    """Run a node with its load; nothing of it is left afterwards, even after a failure."""
    processes.adopt_orphans()
    with contextlib.ExitStack() as stack:
        # A short path, as the paths of Unix sockets must be.
        made_in = tempfile.TemporaryDirectory(prefix="df-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made_in))
        unread = campaign is not None and campaign.unread
        if campaign is not None and campaign.small_disk:
            stack.enter_context(small_disk(folder / DISK))
        output = stack.enter_context(contextlib.closing(FullPipe())) if unread else None
        made = Scene(folder, seed, victims, output)
        try:
            with made.watch.running():
                if made.watch.until(made.all_ready, START_SECONDS) is None:
                    raise NeverReadyError(made.node.daemon.log()[-2000:])
                with made.clients.running():
                    yield made
        finally:
            _end(made)


def _end(made: Scene) -> None:
    processes.end_all([made.daemon])
    made.node.daemon.process.wait()
    processes.end_all(list(processes.descendants()))
    until = time.monotonic() + 10
    while list(processes.descendants()) and time.monotonic() < until:
        processes.bury(())
        time.sleep(0.05)
    processes.bury(())
