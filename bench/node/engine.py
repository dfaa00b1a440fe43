"""A program in place of vLLM: its page, its health and a configurable rate of step records.

The daemon runs it as the engine's interpreter, `engine.py -m vllm… --port N …`; only the plugin's
own sender is on its path, so its records are made and sent as a real engine's are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from disagg_steps import wire
from disagg_steps.sender import Facts, Sender

REST_SECONDS, BURST_STEPS, BURST_STEP_SECONDS = (2.0, 4.0), 15, 0.2
_REFRESH_SECONDS = 0.2
_BUSY_RATIO = 0.9
# The value of a counter or of a histogram's part.
_COUNT = re.compile(rb"(?m)^(\S+_(?:total|bucket|count|sum)(?:{.*})? )([0-9.e+-]+)$")


class Control:
    """The file that controls all engines: steps a second of each, or bursts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._refreshed = 0.0
        self.steps_per_second = 0.0
        self.bursts = False

    def refresh(self) -> None:
        """Read the file again if that is due."""
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH_SECONDS:
            self._refreshed = now
            content = json.loads(self._path.read_text(encoding="utf-8"))
            self.steps_per_second, self.bursts = content["steps_per_second"], content["bursts"]


def facts_of(work: str, number: int, seconds: float) -> Facts:
    """Return a step of a prefill, decode or mixed engine; every fourth mixed one has a chunk."""
    elapsed_ns, kv = round(seconds * 1e9), 0.3 + number % 97 / 200
    prompts = work == "prefill" or (work == "mixed" and number % 4 == 0)
    generating = 0 if work == "prefill" else 24 + number % 17
    chunk = 256 + number % 5 * 64 if prompts else 0
    return Facts(
        elapsed_ns,
        int(prompts),
        chunk,
        generating,
        generating,
        computed_tokens=chunk,
        running=max(generating, 1),
        kv_usage_ratio=kv,
    )


def step_for_ever(sender: Sender, work: str, control: Control, page: Page) -> None:
    """Take steps evenly, at the rate in the file; at rate 0, report being idle once."""
    number, due, resting = 0, time.monotonic(), True
    while True:
        control.refresh()
        if not control.steps_per_second:
            if not resting:
                sender.step(Facts(), time.monotonic_ns(), counted=False)
            resting = True
            time.sleep(_REFRESH_SECONDS)
            continue
        period = 1 / control.steps_per_second
        # Steps more than a second late are skipped.
        due = max(due + period, time.monotonic() - 1)
        time.sleep(max(due - time.monotonic(), 0))
        number, resting = number + 1, False
        page.steps = number
        sender.step(facts_of(work, number, period * _BUSY_RATIO), time.monotonic_ns())


def burst_for_ever(sender: Sender, work: str, control: Control, log: Path) -> None:
    """Alternate between idle and working; log when the first step of each burst ended."""
    numbers = random.Random(log.name)
    while True:
        control.refresh()
        if not control.bursts:
            time.sleep(_REFRESH_SECONDS)
            continue
        time.sleep(numbers.uniform(*REST_SECONDS))
        for number in range(BURST_STEPS):
            time.sleep(BURST_STEP_SECONDS)
            ended_ns = time.monotonic_ns()
            sender.step(facts_of(work, number, BURST_STEP_SECONDS), ended_ns)
            if number == 0:
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{ended_ns}\n")
        sender.step(Facts(), time.monotonic_ns(), counted=False)


class Page:
    """A page on which every count grows by one with each step."""

    def __init__(self, text: bytes) -> None:
        self.steps = 0
        self._counts: list[float] = []
        self._template = _COUNT.sub(self._take, text.replace(b"%", b"%%"))

    def text(self) -> bytes:
        """Return the current page."""
        return self._template % tuple(count + self.steps for count in self._counts)

    def _take(self, sample: re.Match[bytes]) -> bytes:
        self._counts.append(float(sample[2]))
        return sample[1] + b"%.1f"


def serve(host: str, port: int, model: str, page: Page) -> None:
    """Answer the daemon's probes and scrapes, on separate threads."""
    models = json.dumps({"data": [{"id": model}]}).encode()
    bodies = {"/v1/models": models, "/version": b'{"version": "0.32.0"}'}

    class Answers(BaseHTTPRequestHandler):
        # Like uvicorn, which serves vLLM's page: keep connections, send without delay.
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:  # the standard handler finds it by name
            body = page.text() if self.path == "/metrics" else bodies.get(self.path, b"")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    """Serve and step until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--bench-work")
    parser.add_argument("--bench-control", type=Path)
    parser.add_argument("--bench-page", type=Path)
    parser.add_argument("--bench-burst-log", type=Path)
    options, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    page = Page(options.bench_page.read_bytes())
    serve(options.host, options.port, options.served_model_name, page)
    work, control = options.bench_work, Control(options.bench_control)
    # Decode engines use vLLM's default, async scheduling; the others do not.
    flags = wire.OVERLAPPED if work == "decode" else 0
    sender = Sender(os.environ[wire.SOCKET_ENVIRONMENT], flags=flags)
    sender.start()
    if options.bench_burst_log is not None:
        burst_for_ever(sender, work, control, options.bench_burst_log)
    else:
        step_for_ever(sender, work, control, page)


if __name__ == "__main__":
    sys.exit(main())
