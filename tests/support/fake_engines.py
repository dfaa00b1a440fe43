"""Processes that look like engines from outside: by command line, port and page.

Followers of engines that span nodes have no port and no page.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from support import leftovers
from support.children import free_port
from support.running_node import wait_for

DATA = Path(__file__).parents[1] / "data"

PAGES = {
    "vllm": DATA / "vllm-0.32.0" / "nixl_decode.prom",
    "sglang": DATA / "sglang-0.5.23" / "prefill.prom",
    "dynamo": DATA / "dynamo-1.6.1" / "decode.prom",
}

_SERVER = """\
import http.server, os, signal, socket, sys, threading
def said(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None
if "--headless" in sys.argv or said("--node-rank") not in (None, "0"):
    while True:
        signal.pause()
port = int(os.environ.get("DYN_SYSTEM_PORT") or said("--port"))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            with open(os.environ["FAKE_PAGE"], "rb") as page:
                body = page.read() if self.path == "/metrics" else None
        except OSError:
            body = None
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")
    def log_message(self, *_):
        pass
def publish(port):
    import msgspec, time, zmq
    done = {"num_decode_requests": 4, "sum_decode_kv_tokens": 400}
    step = {"version": 1, "worker_id": "w", "wall_time": 0.01, "scheduled_requests": done}
    publisher = zmq.Context().socket(zmq.PUB)
    publisher.bind(f"tcp://*:{port}")
    for number in range(2**60):
        frames = (b"", number.to_bytes(8, "big"), msgspec.msgpack.encode(step))
        publisher.send_multipart(frames)
        time.sleep(0.02)
if "DYN_FORWARDPASS_METRIC_PORT" in os.environ:
    port_of_steps = os.environ["DYN_FORWARDPASS_METRIC_PORT"]
    threading.Thread(target=publish, args=(port_of_steps,), daemon=True).start()
host = os.environ.get("FAKE_HOST", "127.0.0.1")
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    def server_bind(self):
        if ":" in host:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()
server = Server((host, port), Handler)
if said("--ssl-certfile"):
    import ssl
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(said("--ssl-certfile"), said("--ssl-keyfile"))
    server.socket = context.wrap_socket(server.socket, True, do_handshake_on_connect=False)
server.serve_forever()
"""

# The command of each kind, before its own arguments.
_COMMANDS = {
    "vllm": ("{folder}/vllm", "serve", "some/model"),
    "sglang": ("-m", "sglang.launch_server", "--model-path", "some/model"),
    "dynamo": ("-m", "dynamo.mocker", "--model-path", "some/model"),
}


def install(folder: Path) -> None:
    """Write the programs into a folder for the engines' PYTHONPATH."""
    for name in ("vllm", "sglang/__init__.py", "sglang/launch_server.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name.endswith("__init__.py") else _SERVER)
    (folder / "dynamo").mkdir(exist_ok=True)
    (folder / "dynamo" / "mocker.py").write_text(_SERVER)


@dataclass
class FakeEngine:
    """One process; use it as a context manager. Its page is a file that a test may change."""

    kind: str
    folder: Path
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.page = self.folder / f"{self.kind}-{self.port}.prom"
        self.page.write_bytes(PAGES[self.kind].read_bytes())

    def start(self) -> None:
        command = [part.format(folder=self.folder) for part in _COMMANDS[self.kind]]
        env = {
            "PATH": os.environ["PATH"],
            **leftovers.marks(),
            "PYTHONPATH": str(self.folder),
            "FAKE_PAGE": str(self.page),
            **({"DYN_SYSTEM_PORT": str(self.port)} if self.kind == "dynamo" else {}),
            **self.environment,
        }
        port = [] if self.kind == "dynamo" else ["--port", str(self.port)]
        self.process = subprocess.Popen([sys.executable, *command, *port, *self.arguments], env=env)

    def wait_served(self) -> None:
        """Wait until its port is listened on."""

        def answers() -> bool:
            with socket.socket() as link:
                return link.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for(answers, f"{self.kind} to listen on {self.port}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
