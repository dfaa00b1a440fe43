"""A real stand-in engine process, and the daemon's end of its steps socket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from disagg_cluster.demo.nodefile import free_ports
from disagg_exporter.inside_engine.disagg_steps import wire
from support.wire_records import records_in

MODEL = "demo-8b"
SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class StandInProcess:
    """One running stand-in; `steps` is its accepted connection, the hello still unread."""

    url: str
    port: int
    process: subprocess.Popen[str]
    steps: socket.socket
    sim_dir: Path
    unheard: list[wire.Record] = field(default_factory=list)

    def record(self) -> wire.Record:
        """Wait for its next record."""
        if not self.unheard:
            self.unheard.extend(records_in(self.steps.recv(wire.MAX_PACKET_BYTES)))
        return self.unheard.pop(0)

    def get(self, path: str) -> str:
        """Fetch one of its pages."""
        with urllib.request.urlopen(self.url + path, timeout=SECONDS) as answer:
            return str(answer.read().decode())

    def value(self, series: str) -> float:
        """Read one series of its metrics page, as written there."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no {series} on the page")


def standin_argv(port: int, *more: str, role: str = "prefill") -> list[str]:
    """Return the command line of a stand-in."""
    module = ["-m", "disagg_cluster.demo.standin"]
    name = ["--name", f"{role}-0", "--role", role, "--port", str(port), "--model", MODEL]
    return [sys.executable, *module, *name, *more]


@contextmanager
def standin(role: str = "prefill", *more: str) -> Iterator[StandInProcess]:
    """Run a stand-in on two simulated GPUs; it always ends with the block."""
    # Not pytest's folder: the path of a Unix socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="standin-"))
    port = free_ports(1)[0]
    path = folder / "steps.sock"
    gpus = ["--gpus", "0,1", "--sim-dir", str(folder / "sim")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(SECONDS)
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen(
            standin_argv(port, *gpus, *more, role=role),
            env={**os.environ, wire.SOCKET_ENVIRONMENT: str(path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            # It listens on its port before it connects here.
            steps = listener.accept()[0]
            with steps:
                steps.settimeout(SECONDS)
                url = f"http://127.0.0.1:{port}"
                yield StandInProcess(url, port, process, steps, folder / "sim")
        finally:
            process.kill()
            process.communicate()
            shutil.rmtree(folder)
