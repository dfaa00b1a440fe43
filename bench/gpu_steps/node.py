"""The daemon beside a real engine on a GPU, as users run it: `python -m bench.gpu_steps.node`.

`disagg-node start` launches a mixed vLLM worker; `disagg-node tune` probes it while it is idle;
then users load it. Writes what each command printed, the daemon's page every two seconds, how long
each step held the GPU as the GPU itself says (`times.csv`), and the engine's log, in which vLLM
tells each iteration itself. After each load it prints the daemon's account beside the GPU's.
"""

from __future__ import annotations

import gzip
import os
import shutil
import time
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

from disagg_cluster.demo.disaggregated_client import complete_on_one
from support.children import free_port
from support.running_node import RunningNode

WORKER, SERVED = "mixed-0", "measured"


@click.command()
@engine_options
@click.option("--load-seconds", default=30.0, help="Of each load.")
@click.option("--rate", default=1.0, help="Of the loads' users a second.")
@click.option("--tune-seconds", default=75.0, help="At most, of each phase; 0: no tuning.")
@click.option("--gpus", default=1)
def main(
    python: str,
    model: Path,
    out: Path,
    load_seconds: float,
    rate: float,
    tune_seconds: float,
    gpus: int,
    args: tuple[str, ...],
    env: tuple[str, ...],
) -> None:
    """Run the daemon, its commands and the loads."""
    out.mkdir(parents=True, exist_ok=True)
    folder = out / "run"
    if folder.exists():
        raise click.BadParameter(f"{out} holds another run: name a new folder", param_hint="--out")
    times = out / "times.csv"
    more = {
        "DISAGG_KEEP_ITERATION_LOG": "1",
        FILE_VARIABLE: str(times.resolve()),
        **environment(env),
    }
    folder.mkdir()
    begun = time.monotonic()
    more["PYTHONPATH"] = os.pathsep.join(
        filter(None, (install(folder / "timing"), more.get("PYTHONPATH")))
    )
    node = RunningNode(_node_file(python, model, gpus, args, more, folder), folder)
    try:
        node.wait_ready(240.0)
        click.echo(f"ready after {time.monotonic() - begun:.0f} s")
        if tune_seconds:
            _tune(out, str(folder / "node.yaml"), tune_seconds)
        with pages_kept(node, out):
            for load in (LOADS[0], LOADS[2], LOADS[4]):
                _load(node, out, times, load, load_seconds, rate)
            time.sleep(COMMITTED_SECONDS)  # so that the last page kept has all of it
        keep_answer(out, "doctor.txt", ["doctor", "-c", str(folder / "node.yaml")], 30)
    finally:
        node.process.terminate()
        node.process.wait(40)
        with gzip.open(out / "worker.log.gz", "wb") as packed:
            for log in sorted(folder.rglob(f"*{WORKER}*.log")):
                with log.open("rb") as read:
                    shutil.copyfileobj(read, packed)
        shutil.copy(folder / "daemon.log", out / "daemon.log")
        shutil.rmtree(folder, ignore_errors=True)


def _load(
    node: RunningNode, out: Path, times: Path, load: Load, seconds: float, rate: float
) -> None:
    before, begun_us = account(node), time.monotonic_ns() // 1000
    url = node.url(WORKER)
    play(
        lambda prompt, tokens: complete_on_one(url, SERVED, prompt, tokens, REQUEST_SECONDS),
        load,
        seconds,
        rate,
    )
    time.sleep(REPORTED_SECONDS)  # until the page has the last step; nothing announces that
    tell_steps(before, account(node), times, begun_us)
    node_file = str(node.folder / "node.yaml")
    keep_answer(out, f"phases-{load.name}.txt", ["phases", "-c", node_file, "--wide"], 20)


def _tune(out: Path, node_file: str, seconds: float) -> None:
    engine = ["--engine", WORKER, "-c", node_file, "--json"]
    keep_answer(out, "tune-prefill.txt", ["tune", "prefill", *engine], seconds)
    keep_answer(out, "tune-decode.txt", ["tune", "decode", *engine, "--itl", "15ms"], seconds)


def _node_file(
    python: str, model: Path, gpus: int, args: tuple[str, ...], env: dict[str, str], folder: Path
) -> dict[str, Any]:
    worker: dict[str, Any] = {
        "name": WORKER,
        "role": "mixed",
        "model": str(model),
        "served_model_name": SERVED,
        "python": python,
        "port": free_port(),
        "args": list(args),
        "env": env,
        "deadlines": {"start_seconds": 300},
    }
    if gpus:
        worker["gpus"] = gpus
    return {
        "node": "measured",
        "run_dir": str(folder),
        "listen": {"metrics": f"127.0.0.1:{free_port()}"},
        "latency": {"ttft_seconds": 1.0, "itl_seconds": 0.03},
        "workers": [worker],
    }


if __name__ == "__main__":
    main()
