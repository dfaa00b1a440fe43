"""A node as users run it: `disagg-node start` on a node file, and a real Prometheus beside it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.host.files.package_data import asset_dir
from disagg_cluster.prometheus.local_server import ScrapeTarget, prepare_prometheus, scrape_config
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from support.children import free_port

DISAGG_NODE = (sys.executable, "-m", "disagg_cluster.cli")
Found = TypeVar("Found")


def wait_for(probe: Callable[[], Found | None], what: str, seconds: float = 120.0) -> Found:
    """Poll until the probe returns a true value; return that."""
    until, tick = time.monotonic() + seconds, threading.Event()
    while not (found := probe()):
        assert time.monotonic() < until, f"waited {seconds:g} s in vain for {what}"
        tick.wait(0.2)
    return found


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape of a metrics page: samples by name."""

    samples: dict[str, list[tuple[dict[str, str], float]]]

    def sum(self, name: str, **labels: str) -> float:
        """Add up the samples that carry these labels."""
        return sum(
            value for have, value in self.samples.get(name, []) if labels.items() <= have.items()
        )


class RunningNode:
    """A started daemon; its log goes to a file, shown at failures, or to `output`."""

    start: tuple[str, ...] = (*DISAGG_NODE, "start")

    def __init__(
        self,
        node_file: dict[str, Any],
        folder: Path,
        output: int | None = None,
        *,
        start: tuple[str, ...] | None = None,
    ) -> None:
        self.folder = folder
        self.page_url = f"http://{node_file['listen']['metrics']}/metrics"
        self.workers = {worker["name"]: worker for worker in node_file["workers"]}
        if "router" in node_file:
            self.workers["router"] = node_file["router"]
        path = folder / "node.yaml"
        path.write_text(yaml.safe_dump(node_file), encoding="utf-8")
        self._log = (folder / "daemon.log").open("wb")
        self.process = subprocess.Popen(
            [*(start or self.start), "-c", str(path), "--json"],
            stdout=self._log if output is None else output,
            stderr=subprocess.STDOUT,
        )

    def url(self, worker: str) -> str:
        """Return the root of a worker's server."""
        return f"http://127.0.0.1:{self.workers[worker]['port']}"

    def page(self) -> Page:
        """Read the node's page."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(fetch(self.page_url, 5.0).decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return Page(found)

    def log(self) -> str:
        """Return the daemon's log."""
        return (self.folder / "daemon.log").read_text(encoding="utf-8")

    def tell_logs(self) -> None:
        """Write the end of every log to stderr, where a failed test shows it."""
        for path in (self.folder / "daemon.log", *sorted(self.folder.glob("logs/*.log"))):
            text = path.read_text(encoding="utf-8", errors="replace")
            sys.stderr.write(f"--- {path.name}\n{text[-6000:]}\n")

    def wait_ready(self, seconds: float = 300.0) -> None:
        """Wait until every worker is ready; a worker that failed ends the wait."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log()[-4000:]
            try:
                page = self.page()
            except DisaggError:
                return False
            assert page.sum("disagg_worker_state", state="failed") == 0, self.log()[-4000:]
            return page.sum("disagg_worker_state", state="ready") == len(self.workers)

        wait_for(ready, "all workers to be ready", seconds)

    def wait_settled(self, seconds: float = 60.0) -> Page:
        """Wait until every engine is idle and all past time is committed."""
        now = time.time()

        def settled() -> Page | None:
            page = self.page()
            marks = page.samples.get("disagg_engine_watermark_timestamp_seconds", [])
            closed = marks and all(value > now for _, value in marks)
            gpus = page.samples.get("disagg_gpu_watermark_timestamp_seconds", [])
            return page if closed and all(value > now for _, value in gpus) else None

        return wait_for(settled, "the watermarks to pass", seconds)

    def wait_committed(self, engine: str, until: float, seconds: float = 60.0) -> Page:
        """Wait until an engine's time is committed up to a moment (Unix seconds)."""

        def committed() -> Page | None:
            page = self.page()
            serving = page.samples.get("disagg_gpu_assignment_info", [])
            gpus = {of["gpu"] for of, _ in serving if of["engine"] == engine}
            marks = [
                value
                for label, names in (("engine", {engine}), ("gpu", gpus))
                for of, value in page.samples.get(f"disagg_{label}_watermark_timestamp_seconds", [])
                if of[label] in names
            ]
            return page if len(marks) > len(gpus) > 0 and min(marks) > until else None

        return wait_for(committed, f"the watermarks of {engine} to pass", seconds)

    def stop(self) -> int:
        """Send Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(120)
        self._log.close()
        return code


def plugin_environment(run_dir: Path) -> dict[str, str]:
    """Return the variables that `disagg-node plugin env` prints, as a shell takes them."""
    command = [*DISAGG_NODE, "plugin", "env", "--run-dir", str(run_dir)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = shlex.split(said, posix=True)
    return dict(word.split("=", 1) for word in words if word != "export")


@contextlib.contextmanager
def running_node(
    node_file: dict[str, Any], folder: Path, start: tuple[str, ...] | None = None
) -> Iterator[RunningNode]:
    """Run a node until the block ends; nothing of it is left behind."""
    node = RunningNode(node_file, folder, start=start)
    try:
        yield node
    except BaseException:
        node.tell_logs()
        raise
    finally:
        if node.process.poll() is None:
            node.stop()
        if not node._log.closed:
            node._log.close()


@contextlib.contextmanager
def prometheus_beside(
    node: RunningNode, folder: Path, interval_seconds: float = 1.0
) -> Iterator[str]:
    """Run a Prometheus that scrapes the node periodically; yield its address."""
    target = ScrapeTarget(node.page_url.split("/")[2], "test-node", "test")
    text = scrape_config(
        [target],
        interval_seconds=interval_seconds,
        rule_files=[f"{asset_dir('alerts')}/rules/*.yaml"],
    )
    listen = f"127.0.0.1:{free_port()}"
    launch = prepare_prometheus(Path("prometheus"), folder / "prometheus", text, listen=listen)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(launch.argv, stdout=log, stderr=log, env=dict(os.environ))
        try:
            yield launch.url
        finally:
            process.kill()
            process.wait()
