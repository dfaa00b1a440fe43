"""Attach mode over a test's NVML, API server and kubelet, in a separate process.

pynvml finds its library once per process, so this runs as a program under the stub:
`attached_node.py API_URL KUBELET_SOCKET RUN_FOLDER DYNAMO_FOLDER PROC`. It writes the table of
engines as a line of JSON every quarter of a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from support.nvml_stub import STATE_ENVIRONMENT

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Line:
    """One engine as it is shown."""

    role: str
    source: str
    confidence: str
    gpus: tuple[str, ...]
    state: str
    pod: str = ""
    up: bool = False


class AttachedNode:
    """The program, and the last table that it wrote; use it as a context manager."""

    def __init__(self, library: Path, state: Path, *arguments: str) -> None:
        self._environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            STATE_ENVIRONMENT: str(state),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        self._arguments = arguments
        self._tables: queue.Queue[dict[str, Any]] = queue.Queue()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *self._arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._reader.join(20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def until(self, right: Callable[[Mapping[str, Line]], bool], what: str) -> float:
        """Wait until the table is right; return how many seconds that took."""
        began, last = time.monotonic(), {}
        while time.monotonic() - began < PATIENCE_SECONDS:
            try:
                last = self._tables.get(timeout=1.0)
            except queue.Empty:
                continue
            table = {name: Line(**{**e, "gpus": tuple(e["gpus"])}) for name, e in last.items()}
            if right(table):
                return time.monotonic() - began
        raise AssertionError(f"waited in vain for {what}: {json.dumps(last, indent=1)}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tables.put(json.loads(line))


async def _run(api_url: str, kubelet: Path, run_folder: Path, dynamo: str, proc: Path) -> None:
    from disagg_cluster.config import Attach
    from disagg_cluster.discovery.attach_mode import AttachMode
    from disagg_cluster.discovery.kubernetes.api_server import ApiServer
    from disagg_cluster.discovery.kubernetes_discovery import KubernetesDiscovery
    from disagg_cluster.discovery.observations.types import EngineNames
    from disagg_cluster.host.run_dir.layout import RunFolder
    from disagg_cluster.telemetry.engine_registry import EngineRegistry
    from disagg_exporter.accounting import Ledger
    from disagg_exporter.capacity import CapacityModel
    from disagg_exporter.devices.nvml.device_source import NvmlDevices
    from support.fake_api_server import NODE

    source = NvmlDevices()
    folder, ledger = RunFolder(run_folder), Ledger()
    sweep = source.sweep(time.monotonic_ns())
    registry = EngineRegistry(ledger, 1.0)
    found = AttachMode(
        Attach(dynamo_files=dynamo),
        registry,
        EngineNames(),
        folder,
        ledger,
        CapacityModel(1.0),
        source.inventory(),
        lambda: sweep.readings,
        proc=proc,
        kubernetes=KubernetesDiscovery(ApiServer(api_url), NODE, kubelet, folder.pods),
    )
    tasks = [asyncio.create_task(found.run()), asyncio.create_task(registry.pages.run())]
    while not any(task.done() for task in tasks):
        sweep = source.sweep(time.monotonic_ns())
        ledger.advance(time.monotonic_ns())
        table = {
            status.engine: asdict(
                Line(
                    status.role.value,
                    status.source,
                    status.confidence,
                    status.devices,
                    status.state.value,
                    status.pod,
                    status.up,
                )
            )
            for status in registry.statuses()
        }
        sys.stdout.write(json.dumps(table) + "\n")
        sys.stdout.flush()
        await asyncio.sleep(0.25)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(
        _run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    )
