"""A Dynamo frontend with a prefill and a decode mock worker, and their step messages relayed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.host.processes.procfs import session_pids
from support.children import free_port

MODEL = "tiny"

# Run with Dynamo's interpreter, as they import its packages.
_MODEL_SCRIPT = Path(__file__).with_name("dynamo_model.py")
_RELAY_SCRIPT = Path(__file__).with_name("dynamo_relay.py")


@dataclass(frozen=True, slots=True)
class DynamoNode:
    """A running node, for a test; `relays` are the leaders of separate sessions.

    `workers` are the processes of its engines; `files` is where they register.
    """

    frontend_url: str
    page_urls: dict[str, str]
    workers: dict[str, int]
    relays: dict[str, int]
    fpm_addresses: dict[str, str]
    files: Path

    def complete(self, prompt: str, tokens: int) -> None:
        """Request a completion of this many tokens."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        headers = {"Content-Type": "application/json"}
        url = f"{self.frontend_url}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()


@contextlib.contextmanager
def dynamo_node(python: Path, folder: Path) -> Iterator[DynamoNode]:
    """Run the node until the block ends; its logs are in the folder."""
    subprocess.run([python, _MODEL_SCRIPT, folder / "model"], check=True, timeout=120)
    (folder / "kv").mkdir()
    http, bootstrap = free_port(), free_port()
    # Dynamo reads DYN_SYSTEM_PORT as a signed 16-bit number; ours are all below 30,000.
    pages = {"prefill": free_port(), "decode": free_port()}
    fpm = {"prefill": free_port(), "decode": free_port()}
    environment = {
        **os.environ,
        "DYN_FILE_KV": str(folder / "kv"),
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "HF_HUB_OFFLINE": "1",
    }
    backend = ("--discovery-backend", "file")
    mocker = ("-m", "dynamo.mocker", "--model-path", str(folder / "model"), "--model-name", MODEL)
    commands: dict[str, Sequence[object]] = {
        "prefill": (
            *mocker,
            "--disaggregation-mode",
            "prefill",
            *backend,
            "--bootstrap-ports",
            bootstrap,
        ),
        "decode": (*mocker, "--disaggregation-mode", "decode", *backend),
        "frontend": ("-m", "dynamo.frontend", "--http-port", http, "--router-mode", "kv", *backend),
        "relay-prefill": (_RELAY_SCRIPT, "prefill", fpm["prefill"]),
        "relay-decode": (_RELAY_SCRIPT, "backend", fpm["decode"]),
    }
    with contextlib.ExitStack() as stack:
        pids = {}
        for name, command in commands.items():
            mine = environment | {"DYN_SYSTEM_PORT": str(pages.get(name, -1))}
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            child = subprocess.Popen(
                [python, *map(str, command)],
                env=mine,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(_end, child)
            pids[name] = child.pid
        node = DynamoNode(
            f"http://127.0.0.1:{http}",
            {name: f"http://127.0.0.1:{port}/metrics" for name, port in pages.items()},
            {name: pids[name] for name in pages},
            {name: pids[f"relay-{name}"] for name in fpm},
            {name: f"tcp://127.0.0.1:{port}" for name, port in fpm.items()},
            folder / "kv",
        )
        _wait_until_served(node)
        yield node


def _wait_until_served(node: DynamoNode) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            node.complete("hello", 1)
        except (OSError, urllib.error.HTTPError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and all processes of its session."""
    for pid in (*session_pids(child.pid), child.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.wait(30)
