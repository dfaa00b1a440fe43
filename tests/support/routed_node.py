"""Stand-ins behind a real vllm-router whose members a daemon manages, and its users."""

from __future__ import annotations

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import DaemonStatus
from disagg_cluster.control.views import WorkerView
from support.children import free_port
from support.running_node import RunningNode, wait_for
from support.two_planes import MODEL, standin_node

WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")


def routed_node(folder: Path, router_python: Path, **changes: Any) -> dict[str, Any]:
    """Return a node file of two prefill and two decode stand-ins behind a router, live members."""
    quick = {"pages_seconds": 0.5, "health_seconds": 0.25}
    node_file = standin_node(folder, intervals=quick, **changes)
    for worker in tuple(node_file["workers"]):
        other = worker["name"].replace("-0", "-1")
        node_file["workers"].append({**worker, "name": other, "port": free_port()})
    node_file["router"] = {
        "python": str(router_python.absolute()),
        "port": free_port(),
        "metrics_port": free_port(),
        "membership": "live",
    }
    return node_file


def worker_views(socket: Path) -> dict[str, WorkerView]:
    """Return the workers that a daemon reports."""
    replies = ask(socket, new_request(DaemonStatus()), 10.0)
    return {reply.worker.worker: reply.worker for reply in replies if reply.worker is not None}


def wait_routed(socket: Path, node: RunningNode, seconds: float = 300.0) -> None:
    """Wait until every worker is ready, within `seconds`, and gets requests."""
    node.wait_ready(seconds)
    engines = [name for name in node.workers if name != "router"]

    def routed() -> bool:
        views = worker_views(socket)
        return all(views[name].routed_as == views[name].role for name in engines)

    wait_for(routed, "all workers to be routed")


class Users:
    """Clients that send the router one request after the other until stopped.

    Args:
        url: The router's root.
        count: Number of clients.
        think_seconds: Time from an answer to the next request.
        model: The name of the requested model.
        patience_seconds: Timeout of a request.
    """

    def __init__(
        self,
        url: str,
        count: int = 4,
        think_seconds: float = 0.0,
        *,
        model: str = MODEL,
        patience_seconds: float = 60.0,
    ) -> None:
        self._url = f"{url}/v1/completions"
        self._think_seconds = think_seconds
        self._model = model
        self._patience_seconds = patience_seconds
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._executor = ThreadPoolExecutor(count)
        self.failed: list[str] = []
        self.answered: list[tuple[float, float]] = []
        """When each request was answered (time.monotonic), and its duration in seconds."""
        self._clients = [self._executor.submit(self._ask) for _ in range(count)]

    def stop(self) -> None:
        """Send no more requests; those under way finish."""
        self._over.set()
        for client in self._clients:
            client.result()
        self._executor.shutdown()

    def within(self, includes: Callable[[float], bool]) -> list[float]:
        """Return the durations of the requests answered at these moments, in rising order."""
        return sorted(seconds for at, seconds in self.answered if includes(at))

    def _ask(self) -> None:
        headers = {"Content-Type": "application/json"}
        while not self._over.is_set():
            # A real engine would find a repeated prompt in its cache and compute nothing.
            prompt = f"{next(self._numbers)} " + "word " * 100
            asked = {"model": self._model, "prompt": prompt, "max_tokens": 8}
            body = json.dumps(asked).encode()
            request = urllib.request.Request(self._url, body, headers)
            began = time.monotonic()
            try:
                with urllib.request.urlopen(request, timeout=self._patience_seconds) as answer:
                    answer.read()
                    now = time.monotonic()
                    self.answered.append((now, now - began))
            except OSError as error:
                self.failed.append(repr(error))
                self._over.wait(0.05)
            self._over.wait(self._think_seconds)
