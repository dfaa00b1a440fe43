"""A daemon under clients that never get done: its memory, and who is answered meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.certificates import client_context, write_files
from support.children import free_port
from support.running_node import DISAGG_NODE, wait_for
from support.slow_clients import slow_clients

KINDS = ("silent", "drip", "fat", "body", "pipelined", "asked_once")
TLS_KINDS = ("silent", "hello", "tls_fat", "tls_pipelined")
NOBODY = "$2y$04$" + "a" * 53
WEB_CONFIG = {
    "tls_server_config": {"cert_file": "cert.pem", "key_file": "key.pem"},
    "basic_auth_users": {"nobody": NOBODY},
}
GROWTH_MEBIBYTES = 32.0


def status(port: int, path: str, address: str, context: ssl.SSLContext | None = None) -> int:
    """What a client of an address is answered on a connection of its own; 0 if nothing."""
    source, seconds = (address, 0), 10.0
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, seconds, source)
        if context is None
        else http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=seconds, source_address=source, context=context
        )
    )
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return 0
        return answer.status


@contextlib.contextmanager
def daemon(folder: Path, port: int, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run one without engines until it answers; yield its pid."""
    node = {"devices": "cpu", "run_dir": str(folder), "listen": {"metrics": f"127.0.0.1:{port}"}}
    write_files(folder, {"node.yaml": yaml.safe_dump(node), "web.yml": yaml.safe_dump(WEB_CONFIG)})
    command = [*DISAGG_NODE, "start", "--quiet", "--config", str(folder / "node.yaml")]
    if context is not None:
        command += ["--web-config", str(folder / "web.yml")]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(lambda: status(port, "/metrics", "127.0.0.1", context) != 0, "the page")
            yield process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def mebibytes(pid: int, field: str) -> float:
    """A line of a process's memory, such as VmRSS."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


@pytest.mark.parametrize(
    ("kinds", "count"), [(KINDS, 500), (TLS_KINDS, 100)], ids=["in the clear", "over TLS"]
)
def test_unfinished_requests_do_not_block_others_and_cost_little_memory(
    kinds: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    """A health probe comes from the address of the clients, a scraper from another."""
    port, context = free_port(), None if kinds is KINDS else client_context()
    expected = 200 if context is None else 401
    with daemon(tmp_path, port, context) as pid:
        before = mebibytes(pid, "VmRSS")
        missed = []
        for kind in kinds:
            with slow_clients(kind, port, "127.0.0.1", count):
                for _ in range(3):
                    for path, address in (("/healthz", "127.0.0.1"), ("/metrics", "127.0.0.2")):
                        answer = status(port, path, address, context)
                        missed += [] if answer == expected else [(kind, path, answer)]
        grown = mebibytes(pid, "VmHWM") - before

    assert missed == []
    assert grown < GROWTH_MEBIBYTES
