"""The programs beside a node: a Prometheus that scrapes it, and a planner; both can be killed."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import yaml

from disagg_cluster.prometheus.local_server import ScrapeTarget, prepare_prometheus, scrape_config
from disagg_exporter.errors import DisaggError
from support.children import free_port
from support.prometheus_query import query
from support.running_node import DISAGG_NODE

SCRAPE_SECONDS = 2.0


class Beside:
    """A program beside the node that can be killed and started again.

    Args:
        argv: Its command.
        log: The file for its output.
        serves: Whether it works.
    """

    def __init__(self, argv: tuple[str, ...], log: Path, serves: Callable[[], bool]) -> None:
        self._argv = argv
        self._log = log
        self._serves = serves
        self.process = self._start()

    def serves(self) -> bool:
        """Return whether it works; a program that does not answer does not."""
        try:
            return self._serves()
        except (DisaggError, OSError, ValueError):
            return False

    def kill_and_start(self) -> None:
        """Kill it with SIGKILL and start it again, as a service manager would."""
        self.close()
        self.process = self._start()

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._argv, stdout=log, stderr=log)


class Programs:
    """A Prometheus that scrapes a node, and a planner that reads it.

    Args:
        folder: The folder for their files.
        page_url: The node's metrics page.
    """

    def __init__(self, folder: Path, page_url: str) -> None:
        self.ports = (free_port(), free_port())
        listen, address = (f"127.0.0.1:{port}" for port in self.ports)
        target = ScrapeTarget(page_url.split("/")[2], "test", "test")
        text = scrape_config([target], interval_seconds=SCRAPE_SECONDS)
        launch = prepare_prometheus(Path("prometheus"), folder / "prometheus", text, listen=listen)
        self.prometheus_url = launch.url

        def scrapes() -> bool:
            return [value for _, value in query(launch.url, "up")] == [1.0]

        self.prometheus = Beside(tuple(launch.argv), folder / "prometheus.log", scrapes)
        file = folder / "planner.yaml"
        settings = {
            "cluster": "test",
            "prometheus": {"url": launch.url},
            "every_seconds": 10,
            "lock_file": str(folder / "planner.lock"),
            "listen": {"metrics": address},
        }
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        argv = (*DISAGG_NODE, "planner", "--config", str(file))

        def has_page() -> bool:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=2) as answer:
                return b"disagg_collector_success" in answer.read()

        self.planner = Beside(argv, folder / "planner.log", has_page)

    def both(self) -> tuple[Beside, Beside]:
        """Return both programs."""
        return self.prometheus, self.planner
