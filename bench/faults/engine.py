"""A stand-in engine that misbehaves on request; it is run in place of a vLLM.

A JSON file, `FAULTS_CONTROL`, controls it: `health_seconds` (how long /health takes), `exit_code`
(its exit code at SIGUSR1), `at_term` (the exit code with which it crashes when asked to end),
`helper` (`fork` or `setsid`: a child that it starts with, in its own or a new session). Its
totals, as carried by its step records, are written to `FAULTS_TOTALS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from disagg_cluster.demo import standin
from disagg_cluster.demo.http1 import HttpAnswer, HttpRequest
from disagg_cluster.demo.routes import Routes
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.sender import Sender

TOTALS_SECONDS = 0.25
HELPER_SECONDS = "100000"


class TotalsSender(Sender):
    """Sends step records and writes their totals to a file."""

    def start(self) -> None:
        """Connect, and start writing totals."""
        super().start()
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        path = Path(os.environ["FAULTS_TOTALS"])
        part = path.with_suffix(f".{os.getpid()}")
        while True:
            record = wire.Record(
                *wire.LAYOUT.unpack(self._stream.standing(wire.HEARTBEAT, time.monotonic_ns()))
            )
            totals = {
                "pid": os.getpid(),
                "prefill": record.ns_context / 1e9,
                "decode": record.ns_generation / 1e9,
                "mixed": record.ns_mixed / 1e9,
            }
            try:
                part.write_text(json.dumps(totals), encoding="utf-8")
                part.rename(path)
            except OSError:
                pass  # some faults fill the disk
            time.sleep(TOTALS_SECONDS)


class ControlledRoutes(Routes):
    """Answers /health and drains as the control file demands."""

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        """Answer one HTTP request."""
        if request.path == "/health":
            await asyncio.sleep(control().get("health_seconds", 0.0))
        return await super().handle(request)

    async def drain(self) -> None:
        """Wait for requests, or crash."""
        if (code := control().get("at_term")) is not None:
            os._exit(code)
        await super().drain()


def control() -> dict[str, Any]:
    """Return the content of the control file."""
    try:
        control: dict[str, Any] = json.loads(Path(os.environ["FAULTS_CONTROL"]).read_text())
    except (OSError, ValueError):
        return {}
    return control


def main() -> int:
    """Serve as a stand-in until asked to end."""

    def option(name: str) -> str:
        return sys.argv[sys.argv.index(name) + 1]

    socket = os.environ.get(wire.SOCKET_ENVIRONMENT)
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    options = standin.Options(
        name=os.environ["FAULTS_NAME"],
        role=os.environ["FAULTS_ROLE"],
        port=int(option("--port")),
        model=option("--served-model-name"),
        gpus=tuple(map(int, devices.split(","))) if devices else (),
        sim_dir=Path(socket).parent / "sim" if socket and devices else None,
    )
    # The plain stand-in, except for what it sends and answers.
    standin.Sender = TotalsSender  # type: ignore[misc] # a class, and of this process only
    standin.Routes = ControlledRoutes  # type: ignore[misc] # as above
    helper = control().get("helper")
    if helper:
        argv = ["sleep", HELPER_SECONDS + str(options.port)]
        subprocess.Popen(argv, start_new_session=helper == "setsid")
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(control().get("exit_code", 1)))
    try:
        asyncio.run(standin.serve(options, socket))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
