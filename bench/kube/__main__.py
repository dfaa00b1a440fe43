"""The cost of watching a node's pods, and how soon a change is noticed: `make bench-kube`.

The daemon's own watches, with a fake kubelet (gRPC) and a fake API server (HTTP) in another
process. Bars: a pod that starts on a GPU is joined to it within 5 s; memory grows by at most 1 MB
in 10,000 pod events.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from bench.kube.sizes import NODE, PODS, UUIDS

from disagg_cluster.discovery.finders.pods import PodFinder
from disagg_cluster.discovery.kubernetes.api_server import ApiServer
from disagg_cluster.discovery.kubernetes.pod_watch import PodWatch
from disagg_exporter.devices.pod_resources.client import PodResources
from disagg_exporter.model import Device

REPORT = Path("bench/out/kube.json")
REST_SECONDS = 30.0
EVENTS = 10_000
STARTS = 50
JOIN_BAR_SECONDS, GROWTH_BAR_MB = 5.0, 1.0
DEVICES = [Device(uuid, at, "H100", f"nvidia{at}") for at, uuid in enumerate(UUIDS)]


class Cluster:
    """The process of the fake kubelet and API server."""

    def __init__(self, socket: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.kube.cluster", str(socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((".", "tests"))},
        )
        self.url = self._answer()

    async def ask(self, line: str) -> str:
        """Send a command; return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return await asyncio.to_thread(self._answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def resident_mb() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measured(cluster: Cluster, socket: Path) -> dict[str, float]:
    """Run both watches and return everything measured."""
    watch, resources = PodWatch(ApiServer(cluster.url), NODE), PodResources(socket)
    finder = PodFinder(watch.pods, resources.holders, DEVICES)
    found: dict[str, float] = {}

    memory_mb, cpu_seconds = resident_mb(), time.process_time()
    tasks = [asyncio.create_task(watch.run())]
    while not watch.listed:
        await asyncio.sleep(0.005)
    found["list_cpu_ms"] = (time.process_time() - cpu_seconds) * 1e3
    found["list_memory_mb"] = resident_mb() - memory_mb

    memory_mb = resident_mb()
    tasks.append(asyncio.create_task(resources.run()))
    while resources.why():
        await asyncio.sleep(0.005)
    found["kubelet_memory_mb"] = resident_mb() - memory_mb

    cpu_seconds = time.process_time()
    await asyncio.sleep(REST_SECONDS)
    found["rest_cpu_percent"] = (time.process_time() - cpu_seconds) / REST_SECONDS * 100

    await cluster.ask(f"roll {EVENTS // 20}")
    await asyncio.sleep(2)
    memory_mb, cpu_seconds = resident_mb(), time.process_time()
    await cluster.ask(f"roll {EVENTS // 2}")
    await asyncio.sleep(2)
    found["event_cpu_ms"] = (time.process_time() - cpu_seconds) / EVENTS * 1e3
    found["events_memory_mb"] = resident_mb() - memory_mb

    joins = []
    for number in range(STARTS):
        joins.append(await _joined(cluster, finder, number))
        # So that the starts fall anywhere between two requests to the kubelet.
        await asyncio.sleep(random.random())
    found["join_median_seconds"] = statistics.median(joins)
    found["join_most_seconds"] = max(joins)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def _joined(cluster: Cluster, finder: PodFinder, number: int) -> float:
    """Start a pod on a GPU; return how many seconds it takes until both are joined."""
    began = float(await cluster.ask(f"start {number}"))
    while True:
        if any(s.pod == f"engine-{number}" and s.gpus for s in finder.scan().observations):
            return time.monotonic() - began
        # Checking 110 pods takes 9 ms: checking continuously would delay the result.
        await asyncio.sleep(0.1)


@click.command
def main() -> None:
    """Measure, print, write the report; exit code 1 if a bar is missed."""
    with tempfile.TemporaryDirectory(prefix="dn-") as folder:
        socket = Path(folder) / "kubelet.sock"
        cluster = Cluster(socket)
        try:
            found = asyncio.run(measured(cluster, socket))
        finally:
            cluster.close()
    met = {
        "join": found["join_most_seconds"] <= JOIN_BAR_SECONDS,
        "memory": found["events_memory_mb"] <= GROWTH_BAR_MB,
    }
    click.echo(f"{PODS} pods, {EVENTS} events, {STARTS} starts; {os.cpu_count()} cores")
    for name, value in found.items():
        click.echo(f"  {name:22} {value:8.2f}")
    click.echo(f"bars: {met}")
    report = {"python": platform.python_version(), "cores": os.cpu_count(), "met": met, **found}
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(met.values()) else 1)


if __name__ == "__main__":
    main()
