"""A real vllm-router before stand-in engines: it routes, its page is read, its health is its own.

DISAGG_ROUTER_PYTHON names the interpreter of an environment with `vllm-router`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from disagg_cluster.config import NodeConfig, Router
from disagg_cluster.config.layout import place
from disagg_cluster.daemon.router_handle import RouterWatch, router_spec
from disagg_cluster.launch.command import build, child_environment
from disagg_cluster.launch.router_command import router_engines
from disagg_cluster.lifecycle.state import Health
from disagg_cluster.nodefile import expected_devices, from_mapping
from disagg_cluster.supervisor.health.readiness import probe
from disagg_cluster.supervisor.process.child_process import ChildProcess, start
from disagg_exporter.model import Phase, RouterCounts, RouterStatus
from support.children import free_port
from support.standins import SECONDS

PYTHON = os.environ.get("DISAGG_ROUTER_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="DISAGG_ROUTER_PYTHON names no environment")

REQUESTS = 100


def node_file(folder: Path) -> NodeConfig:
    def engine(name: str, role: str) -> dict[str, object]:
        return {
            "name": name,
            "engine": "standin",
            "role": role,
            "model": "m",
            "port": free_port(),
            "gpus": 1,
        }

    mapping = {
        "devices": "sim",
        "run_dir": str(folder),
        "workers": [engine("prefill-0", "prefill"), engine("decode-0", "decode")],
        "router": {"python": PYTHON, "port": free_port(), "metrics_port": free_port()},
    }
    return from_mapping(mapping, "test")


class Site:
    """A node's engines and its router, as real processes without a daemon."""

    def __init__(self, config: NodeConfig, router: Router, folder: Path) -> None:
        self.router = router
        self.post = router_spec(config, router, folder / "router.log")
        self.engines = router_engines(config, router)
        self.children: dict[str, ChildProcess] = {}
        layout = place(config, expected_devices(config))
        for worker in config.workers:
            command = build(
                worker,
                layout.of(worker.name),
                steps_socket=folder / "none.sock",
                engine_side_folder=folder,
            )
            environment = child_environment(os.environ, command.env)
            log = folder / f"{worker.name}.log"
            self.children[worker.name] = start(command.argv, environment, log)
        self.router_pid = 0
        self.begin_router()

    def begin_router(self) -> None:
        environment = child_environment(os.environ, self.post.command.env)
        child = start(self.post.command.argv, environment, self.post.log_path)
        self.children["router"], self.router_pid = child, child.pid

    def kill(self, name: str) -> None:
        child = self.children.pop(name)
        child.signal_group(signal.SIGKILL)
        wait_for(lambda: child.exit_code() is not None)
        child.reap()

    def end(self) -> None:
        for name in tuple(self.children):
            self.kill(name)

    def health(self) -> Health:
        return probe(self.post.target, self.router_pid, 2.0).health

    def completion(self) -> int:
        body = json.dumps({"model": "m", "prompt": "a few words", "max_tokens": 4}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.router.url}/v1/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


def wait_for(true: Callable[[], bool], seconds: float = 3 * SECONDS) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    config = node_file(tmp_path)
    assert config.router is not None
    with ExitStack() as stack:
        site = Site(config, config.router, tmp_path)
        stack.callback(site.end)
        wait_for(lambda: site.health() is Health.HEALTHY)
        yield site


@contextmanager
def watched(site: Site) -> Iterator[RouterWatch]:
    """A watch of the router's page in a loop of its own."""
    watch = RouterWatch(site.router.metrics_url, site.engines, 0.1, lambda: site.router_pid)
    over = threading.Event()

    async def look() -> None:
        task = asyncio.create_task(watch.run())
        await asyncio.to_thread(over.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with ThreadPoolExecutor(1) as executor:
        looking = executor.submit(asyncio.run, look())
        try:
            yield watch
        finally:
            over.set()
            looking.result()


def named(status: RouterStatus) -> dict[str, bool]:
    """Which engines the router holds well, by our names."""
    names = {engine.url: engine.name for engine in status.engines}
    page = status.page
    return {names[url]: well for url, well in (page.worker_health if page else {}).items()}


def test_requests_through_a_pair_are_counted_and_both_engines_are_healthy(site: Site) -> None:
    with watched(site) as watch:
        wait_for(lambda: watch.status().counts is not None)
        with ThreadPoolExecutor(8) as executor:
            codes = list(executor.map(lambda _: site.completion(), range(REQUESTS)))
        wait_for(lambda: (watch.status().counts or RouterCounts()).requests >= REQUESTS)

        status = watch.status()

    assert codes == [200] * REQUESTS
    assert status.counts == RouterCounts(REQUESTS)
    assert named(status) == {"prefill-0": True, "decode-0": True}


def test_a_router_without_an_engine_stays_healthy_and_reports_the_engine(site: Site) -> None:
    """So the supervisor does not kill the router."""
    url = site.engines[0].url
    with watched(site) as watch:
        wait_for(lambda: watch.status().counts is not None)
        site.kill("prefill-0")
        assert site.completion() == 500
        wait_for(lambda: named(watch.status()).get("prefill-0") is False)
        failed = (Phase.PREFILL, url)
        wait_for(lambda: (watch.status().counts or RouterCounts()).errors.get(failed) == 1)

        assert site.completion() == 503
        assert site.health() is Health.HEALTHY


def test_requests_are_counted_across_a_router_restart(site: Site) -> None:
    with watched(site) as watch:
        wait_for(lambda: watch.status().counts is not None)
        assert site.completion() == 200
        wait_for(lambda: (watch.status().counts or RouterCounts()).requests == 1)
        site.kill("router")
        wait_for(lambda: watch.status().page is None)
        assert not watch.collectors()[0].success

        site.begin_router()
        wait_for(lambda: site.health() is Health.HEALTHY)

        assert site.completion() == 200
        wait_for(lambda: (watch.status().counts or RouterCounts()).requests == 2)
