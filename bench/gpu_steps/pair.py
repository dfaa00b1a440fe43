"""A prefill and a decode engine on one GPU, found by the daemon: `python -m bench.gpu_steps.pair`.

Both are started by hand, as a person does who attaches the daemon to engines; KV is transferred by
NIXL. Users ask the one and then the other, as a router does. Writes what `bench.gpu_steps.node`
writes; each engine's account is printed beside the lengths of its steps by the GPU. Kernels of two
processes take turns on a GPU: a step's length contains the other's turns.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from bench.gpu_steps.loads import LOADS, Load
from bench.gpu_steps.observed import (
    COMMITTED_SECONDS,
    REPORTED_SECONDS,
    REQUEST_SECONDS,
    account,
    engine_options,
    environment,
    keep_answer,
    pages_kept,
    play,
    tell_steps,
)
from bench.gpu_steps.timing import FILE_VARIABLE, install

from disagg_cluster.demo.disaggregated_client import NIXL, complete
from support.children import free_port
from support.running_node import RunningNode, plugin_environment, running_node, wait_for

SERVED = "measured"
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_START_SECONDS = 240.0


@click.command()
@engine_options
@click.option("--load-seconds", default=20.0, help="Of each load.")
@click.option("--rate", default=0.5, help="Of the loads' users a second.")
def main(
    python: str,
    model: Path,
    out: Path,
    load_seconds: float,
    rate: float,
    args: tuple[str, ...],
    env: tuple[str, ...],
) -> None:
    """Start both engines and the daemon, and load them; the engine's options are of both."""
    out.mkdir(parents=True, exist_ok=True)
    ports = {role: free_port() for role in _KV_ROLES}
    # A socket's path is bounded: the run folder must not be a deep one.
    with tempfile.TemporaryDirectory() as short, contextlib.ExitStack() as stack:
        folder = Path(short)
        node = stack.enter_context(running_node(_node_file(folder), folder))
        wait_for(lambda: "metrics page" in node.log(), "the daemon to serve")
        begun = time.monotonic()
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--enable-logging-iteration-details", *args]
        variables = environment(env)
        variables |= _search_paths(plugin_environment(folder / "run"), install(folder / "timing"))
        for role in _KV_ROLES:
            stack.enter_context(_engine(role, ports[role], command, variables, out))
        names = {role: f"vllm-{port}" for role, port in ports.items()}
        for name in names.values():
            wait_for(
                lambda name=name: node.page().sum("disagg_engine_up", engine=name),
                f"{name} to serve",
                _START_SECONDS,
            )
        click.echo(f"{names} ready after {time.monotonic() - begun:.0f} s")
        with pages_kept(node, out):
            for load in (LOADS[0], LOADS[2], LOADS[4]):
                _load(node, out, ports, load, load_seconds, rate)
            time.sleep(COMMITTED_SECONDS)  # so that the last page kept has all of it
        url = node.page_url.removesuffix("/metrics")
        keep_answer(out, "doctor.txt", ["doctor", "--url", url], 30)
        shutil.copy(folder / "daemon.log", out / "daemon.log")


def _load(
    node: RunningNode, out: Path, ports: dict[str, int], load: Load, seconds: float, rate: float
) -> None:
    before = {role: account(node, engine=f"vllm-{port}") for role, port in ports.items()}
    begun_us = time.monotonic_ns() // 1000
    urls = [f"http://127.0.0.1:{ports[role]}" for role in _KV_ROLES]
    play(
        lambda prompt, tokens: complete(
            urls[0], urls[1], SERVED, prompt, tokens, NIXL, REQUEST_SECONDS
        ),
        load,
        seconds,
        rate,
    )
    time.sleep(REPORTED_SECONDS)  # until the page has the last step; nothing announces that
    for role, port in ports.items():
        click.echo(role)
        after = account(node, engine=f"vllm-{port}")
        tell_steps(before[role], after, _times(out, role), begun_us)
    url = node.page_url.removesuffix("/metrics")
    keep_answer(out, f"phases-{load.name}.txt", ["phases", "--url", url, "--wide"], 20)


@contextlib.contextmanager
def _engine(
    role: str, port: int, command: list[str], env: dict[str, str], out: Path
) -> Iterator[None]:
    transfer = {"kv_connector": NIXL, "kv_role": _KV_ROLES[role]}
    argv = [*command, "--served-model-name", SERVED, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--kv-transfer-config", json.dumps(transfer)]
    own = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        FILE_VARIABLE: str(_times(out, role).resolve()),
    }
    with gzip.open(out / f"{role}.log.gz", "wb") as packed:
        log = out / f"{role}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                env=os.environ | env | own,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)
            packed.write(log.read_bytes())
            log.unlink()


def _times(out: Path, role: str) -> Path:
    return out / f"times-{role}.csv"


def _search_paths(plugin: dict[str, str], timing: str) -> dict[str, str]:
    paths = (plugin["PYTHONPATH"], timing, os.environ.get("PYTHONPATH", ""))
    return plugin | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _node_file(folder: Path) -> dict[str, Any]:
    return {
        "node": "measured",
        "run_dir": str(folder / "run"),
        "listen": {"metrics": f"127.0.0.1:{free_port()}"},
        "latency": {"ttft_seconds": 1.0, "itl_seconds": 0.03},
        "workers": [],
        "attach": {},
    }


if __name__ == "__main__":
    main()
