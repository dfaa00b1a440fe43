"""A real Prometheus over blocks made by promtool."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from bench.node.usage import cpu_seconds

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PATIENCE_SECONDS = 600.0
NO_SCRAPES = "scrape_configs: []\n"


class Prometheus:
    """A Prometheus over a folder of blocks, with further flags; by default it scrapes nothing."""

    def __init__(self, binary: str, data: Path, *flags: str, config: str = NO_SCRAPES) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.port = held.getsockname()[1]
        file = data.parent / "prometheus.yaml"
        file.write_text(config)
        self.process = subprocess.Popen(
            [
                binary,
                f"--config.file={file}",
                f"--storage.tsdb.path={data}",
                "--storage.tsdb.retention.time=10y",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=error",
                *flags,
            ]
        )
        self._link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._link.request("GET", "/-/ready")
                reply = self._link.getresponse()
                reply.read()
                if reply.status == 200:
                    return
            self._link.close()
            time.sleep(0.1)
        raise SystemExit("Prometheus does not become ready")

    def ask(self, expression: str, at_seconds: int) -> tuple[float, list[dict[str, object]]]:
        """Query once; return the seconds it took and the result."""
        query = urllib.parse.urlencode({"query": expression, "time": at_seconds})
        began = time.perf_counter()
        self._link.request("GET", f"/api/v1/query?{query}")
        body = self._link.getresponse().read()
        took = time.perf_counter() - began
        answer = json.loads(body)
        if answer["status"] != "success":
            raise SystemExit(f"{expression}: {answer.get('error')}")
        result = answer["data"]["result"]
        return took, result if isinstance(result, list) else []

    def cpu_seconds(self) -> float:
        """Return the CPU time it has used so far."""
        return cpu_seconds(self.process.pid)

    def end(self) -> None:
        """End it and wait."""
        self._link.close()
        self.process.terminate()
        self.process.wait(30)


@contextlib.contextmanager
def running(data: Path, *flags: str, config: str = NO_SCRAPES) -> Iterator[Prometheus]:
    """Run a Prometheus over `data`, with further flags and this configuration."""
    binary = shutil.which("prometheus")
    if binary is None:
        raise SystemExit("no prometheus on the PATH: scripts/system-packages prometheus")
    server = Prometheus(binary, data, *flags, config=config)
    try:
        server.wait()
        yield server
    finally:
        server.end()


def promtool(*arguments: str) -> None:
    """Run promtool; an error ends the benchmark."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"promtool {' '.join(arguments)}: {done.stderr}")
