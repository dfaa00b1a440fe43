"""A real vLLM server on the CPU with our plugin, and its load."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.demo.nodefile import free_ports

MODEL = "tiny"
CLIENTS, TOKENS = 4, 900
_ARGUMENTS = (
    *("--served-model-name", MODEL, "--max-model-len", "1024", "--max-num-seqs", "8"),
    *("--enforce-eager", "--dtype", "float32", "--seed", "0"),
    *("--block-size", "32", "--num-gpu-blocks-override", "512"),
    "--enable-logging-iteration-details",
)
_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
_START_SECONDS, _REQUEST_SECONDS = 400.0, 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """One engine's server."""

    port: int

    def serve(self, requests: int) -> int:
        """Send requests, some at a time; return the tokens they generated."""
        with ThreadPoolExecutor(CLIENTS) as clients:
            return sum(clients.map(self._complete, range(requests)))

    def _complete(self, number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_REQUEST_SECONDS)
        body = {
            "model": MODEL,
            "prompt": f"{number} " * 20,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        text = connection.getresponse().read()
        connection.close()
        lines = [line for line in text.split(b"\n") if line.startswith(b"data: {")]
        return int(json.loads(lines[-1][6:])["usage"]["completion_tokens"])


@contextlib.contextmanager
def running_server(
    python: Path, model: Path, log: Path, more: Mapping[str, str]
) -> Iterator[Server]:
    """Run a server, ready when the block begins, until the block ends."""
    port = free_ports(1)[0]
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    argv += ["--host", "127.0.0.1", "--port", str(port), *_ARGUMENTS]
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **_VARIABLES, **more},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            _wait_ready(process, port, log)
            yield Server(port)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(0.5)
    raise SystemExit(f"vLLM does not start:\n{log.read_text(errors='replace')[-3000:]}")


@contextlib.contextmanager
def listening(path: Path) -> Iterator[None]:
    """Run the daemon's end of a steps socket on a thread; records are decoded and dropped."""
    import asyncio

    from disagg_exporter.steps.listener import StepsListener

    loop = asyncio.new_event_loop()
    listener = StepsListener(path, "engine", lambda _pid: True, lambda _message: None)
    listener.open(loop)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listener.close()
        loop.close()
