"""The node under measurement: stub driver, node file, daemon and its sixteen engines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from disagg_cluster.demo.nodefile import free_ports

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).with_name("engine.py")
ENGINE_PAGE = ROOT / "tests/data/vllm-0.32.0/nixl_decode.prom"
PAGE_BYTES = 200_000
GPUS, ENGINES, BURSTING = 8, 16, 4
_PATIENCE_SECONDS = 120.0
_MEMORY_BYTES = 80 * 1024**3
_SLICES = 3


@dataclass(frozen=True, slots=True)
class Rig:
    """A running node; `folder` holds all of its files."""

    folder: Path
    pid: int
    url: str
    driver_environment: dict[str, str]
    flood: bool

    @property
    def device_weight(self) -> float:
        """The weight of a second of an engine's device: a whole GPU, or a MIG instance."""
        return _SLICES / 7 if self.flood else 1.0

    def set_rate(self, steps_per_second: float, *, bursts: bool = False) -> None:
        """Set the rate of steps of all engines together, and whether four of them burst."""
        each = steps_per_second / (ENGINES if self.flood else ENGINES - BURSTING)
        text = json.dumps({"steps_per_second": each, "bursts": bursts})
        new = self.folder / "control.new"
        new.write_text(text, encoding="utf-8")
        new.rename(self.folder / "control")

    def page(self) -> dict[str, float]:
        """Return the daemon's page, by series as written."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            return read_page(answer.read())

    def burst_ends_ns(self) -> dict[tuple[str, str], list[int]]:
        """Return when the first step of each burst ended, by labels of the series showing it."""
        ends = {}
        for number in range(ENGINES - BURSTING, ENGINES):
            log = self.folder / f"bursts-{number}"
            if log.exists():
                ends[_shown_by(number)] = [int(line) for line in log.read_text().split()]
        return ends


def read_page(text: bytes) -> dict[str, float]:
    """Return the samples of a page by series as written."""
    lines = (line for line in text.decode().splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


@contextlib.contextmanager
def running_rig(folder: Path, *, flood: bool = False) -> Iterator[Rig]:
    """Run the node until the block ends; its engines are idle until `set_rate` is called.

    In a flood no engine bursts or is overlapped, and each has its own device: one of two MIG
    instances of a GPU.
    """
    library, state = _stub_driver(folder, instances=flood)
    node_file, port = _node_file(folder, flood)
    _write_engine(folder)
    driver = {"LD_LIBRARY_PATH": str(library), "NVML_STUB_STATE": str(folder / "driver")}
    stopping = threading.Event()
    moving = threading.Thread(target=_move, args=(state, stopping))
    with (folder / "daemon.log").open("wb") as log:
        argv = [sys.executable, "-m", "bench.node.daemon", str(node_file)]
        process = subprocess.Popen(
            argv, env={**os.environ, **driver}, stdout=log, stderr=log, cwd=ROOT
        )
        rig = Rig(folder, process.pid, f"http://127.0.0.1:{port}/metrics", driver, flood)
        rig.set_rate(0)
        moving.start()
        try:
            _wait_ready(rig, process)
            yield rig
        finally:
            stopping.set()
            moving.join()
            process.terminate()
            process.wait(_PATIENCE_SECONDS)


def _shown_by(number: int) -> tuple[str, str]:
    """Return model and phase, which each bursting engine shares with no other."""
    return f'model_name="{_model(number)[0]}"', f'phase="{_work(number)}"'


def _work(number: int) -> str:
    """Return an engine's kind: prefill and decode in pairs that share a GPU; two pairs mixed."""
    if 8 <= number < ENGINES - BURSTING:
        return "mixed"
    return ("prefill", "decode")[number % 2]


def _model(number: int) -> tuple[str, str]:
    if number < ENGINES - BURSTING:
        return "bench-70b", "org/bench-70b"
    pair = number // 2
    return f"bench-{pair}b", f"org/bench-{pair}b"


def _node_file(folder: Path, flood: bool) -> tuple[Path, int]:
    ports = free_ports(2 * ENGINES + 1)
    workers = []
    for number in range(ENGINES):
        served, model = _model(number)
        work = "mixed" if flood else _work(number)
        args = ["--bench-work", work, "--bench-control", str(folder / "control")]
        args += ["--bench-page", str(folder / "page")]
        if not flood and number >= ENGINES - BURSTING:
            args += ["--bench-burst-log", str(folder / f"bursts-{number}")]
        workers.append(
            {
                "name": f"engine-{number}",
                "role": _work(number),
                "gpus": 1,
                "model": model,
                "served_model_name": served,
                "python": str(folder / "vllm"),
                "port": ports[number],
                "args": args,
                "kv_transfer": {
                    "connector": "NixlConnector",
                    "side_channel_port": ports[ENGINES + number],
                },
                "deadlines": {"drain_seconds": 1, "stop_seconds": 5},
            }
        )
    text = {
        "node": "bench",
        "devices": "nvml",
        "run_dir": str(folder / "run"),
        "listen": {"metrics": f"127.0.0.1:{ports[-1]}"},
        "workers": workers,
    }
    path = folder / "node.yaml"
    path.write_text(yaml.safe_dump(text), encoding="utf-8")
    return path, ports[-1]


def _write_engine(folder: Path) -> None:
    """Write the program in place of vLLM, and a real vLLM 0.32 page padded to its length."""
    path = folder / "vllm"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}" "$@"\n')
    path.chmod(0o755)
    page = ENGINE_PAGE.read_bytes()
    for copy in range(PAGE_BYTES // len(page)):
        page += ENGINE_PAGE.read_bytes().replace(b"vllm:", b"vllm:more%d_" % copy)
    (folder / "page").write_bytes(page[: page.rindex(b"\n", 0, PAGE_BYTES) + 1])


def _stub_driver(folder: Path, *, instances: bool) -> tuple[Path, Any]:
    # The stub belongs to the tests, which are no package that could be imported at the top.
    sys.path.insert(0, str(ROOT / "tests"))
    from support.nvml_stub import build_stub
    from support.nvml_stub.state import new_state

    library = folder / "driver-library"
    library.mkdir()
    state = new_state(folder / "driver")
    for gpu in state.gpus:
        gpu.gpm_supported, gpu.throttle_error, gpu.ecc_error = 1, 0, 0
        gpu.memory_used_bytes = _MEMORY_BYTES // 2
        gpu.run(os.getpid(), os.getppid())
        gpu.mig = int(instances)
        for slot in range(2 if instances else 0):
            instance = gpu.instances[slot]
            instance.slices, instance.gpu_instance = _SLICES, slot + 1
            instance.memory_total_bytes = _MEMORY_BYTES // 2
    return build_stub(library), state


def _move(state: Any, stopping: threading.Event) -> None:
    """Advance the driver's counters, half busy at 400 W, until asked to stop."""
    while not stopping.wait(0.05):
        for gpu in state.gpus:
            gpu.count(50, 25, 20, 10, 15)
            gpu.utilization_percent, gpu.power_milliwatts = 50, 400_000
            gpu.energy_millijoules += 20_000


def _wait_ready(rig: Rig, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            page = rig.page()
            ready = sum(
                value
                for series, value in page.items()
                if series.startswith("disagg_worker_state{") and 'state="ready"' in series
            )
            if ready == ENGINES:
                return
        time.sleep(0.2)
    log = (rig.folder / "daemon.log").read_text(encoding="utf-8", errors="replace")
    raise SystemExit(f"the node does not become ready:\n{log[-3000:]}")
