"""A node with changing daemons, clients that detect failures, and a scraper."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disagg_cluster.demo.disaggregated_client import NIXL, CompletionError, complete
from disagg_cluster.host.processes.process_traits import leaders_writing
from disagg_exporter.errors import DisaggError
from support.children import free_port
from support.running_node import DISAGG_NODE, Page, RunningNode

MODEL = "demo-8b"
SCRAPE_SECONDS = 1.0


def standin_node(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the node file of one prefill and one decode stand-in on the CPU."""
    quick = {"start_seconds": 30, "drain_seconds": 5, "stop_seconds": 5}

    def worker(name: str, role: str) -> dict[str, Any]:
        what = {"name": name, "engine": "standin", "role": role, "model": MODEL}
        return {**what, "port": free_port(), "deadlines": quick}

    node: dict[str, Any] = {
        "node": "test",
        "devices": "cpu",
        "run_dir": str(folder / "run"),
        "listen": {"metrics": f"127.0.0.1:{free_port()}"},
        "workers": [worker("prefill-0", "prefill"), worker("decode-0", "decode")],
    }
    return node | changes


class Clients:
    """Threads that send one completion after the other through a prefill and a decode engine."""

    def __init__(
        self,
        prefill_url: str,
        decode_url: str,
        count: int = 4,
        *,
        model: str = MODEL,
        patience_seconds: float = 30.0,
    ) -> None:
        self.completed = 0
        self.failures: list[str] = []
        self._urls = prefill_url, decode_url
        self._model = model
        self._patience_seconds = patience_seconds
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._wanted.set()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wanted.wait()
            try:
                complete(*self._urls, self._model, "word" * 50, 60, NIXL, self._patience_seconds)
            except CompletionError as error:
                self.failures.append(str(error))
                self._stop.wait(0.05)
            else:
                self.completed += 1

    @contextlib.contextmanager
    def running(self) -> Iterator[Clients]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._wanted.set()
            for thread in self._threads:
                thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Send nothing more until the block ends."""
        self._wanted.clear()
        try:
            yield
        finally:
            self._wanted.set()


class Scraper:
    """Reads a page every second; a daemon that is down is a gap."""

    def __init__(self, node: RunningNode) -> None:
        self.pages: list[Page] = []
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(SCRAPE_SECONDS):
            with contextlib.suppress(DisaggError):
                self.pages.append(self._node.page())

    @contextlib.contextmanager
    def running(self) -> Iterator[Scraper]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()


class UnderInit(RunningNode):
    """A daemon that is started and restarted by the first process of a container."""

    start = (*DISAGG_NODE, "container-init", "--", *DISAGG_NODE, "start")


class Node:
    """One run folder with one daemon after the other."""

    def __init__(
        self,
        node_file: dict[str, Any],
        folder: Path,
        under_init: bool = False,
        *,
        output: int | None = None,
    ) -> None:
        self.node_file = node_file
        self.output = output
        self.folder = folder
        self.run_dir = Path(node_file["run_dir"])
        kind = UnderInit if under_init else RunningNode
        self.daemon = kind(node_file, folder, output=output)

    def next_daemon(self, **changes: Any) -> RunningNode:
        """Start another daemon, optionally with a changed node file."""
        self.node_file |= changes
        self.daemon = RunningNode(self.node_file, self.folder, output=self.output)
        return self.daemon

    def end_daemon(self, how: signal.Signals) -> None:
        """End the daemon by a signal."""
        self.daemon.process.send_signal(how)
        self.daemon.process.wait(20)
        self.daemon._log.close()

    def pids(self) -> dict[str, int]:
        """Return the workers' processes by the journal."""
        journal = json.loads((self.run_dir / "journal.json").read_text())
        return {entry["worker"]: entry["pid"] for entry in journal["workers"]}

    def stop(self, *options: str) -> tuple[int, dict[str, Any]]:
        """Run `disagg-node stop`; return its exit code and its JSON output."""
        argv = [*DISAGG_NODE, "stop", "--run-dir", str(self.run_dir), "--json", *options]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout)


@contextlib.contextmanager
def node(node_file: dict[str, Any], folder: Path, under_init: bool = False) -> Iterator[Node]:
    """Run a node; whatever a test does to it, nothing of it is left."""
    running = Node(node_file, folder, under_init)
    try:
        yield running
    except BaseException:
        running.daemon.tell_logs()
        raise
    finally:
        if running.daemon.process.poll() is None:
            running.daemon.stop()
        if not running.daemon._log.closed:
            running.daemon._log.close()
        running.stop("--workers")
        for log in (running.run_dir / "logs").glob("*.log"):
            assert leaders_writing(log) == (), f"left behind: {log.stem}"


def wait_until(what: str, probe: object, seconds: float = 60.0) -> None:
    """Wait until a probe is true."""
    assert callable(probe)
    until, tick = time.monotonic() + seconds, threading.Event()
    while not probe():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain for {what}"
        tick.wait(0.1)
