"""The daemon beside a real engine on a GPU, as users run it: `python -m bench.gpu_steps.node`.

`disagg-node start` launches a mixed vLLM worker; `disagg-node tune` probes it while it is idle;
then users load it. Writes what each command printed, the daemon's page every two seconds, how long
each step held the GPU as the GPU itself says (`times.csv`), and the engine's log, in which vLLM
tells each iteration itself. After each load it prints the daemon's account beside the GPU's.
"""

from __future__ import annotations

import csv
import gzip
import os
import random
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from bench.gpu_steps.loads import LOADS, Load, length
from bench.gpu_steps.timing import FILE_VARIABLE, install

from disagg_cluster.demo.disaggregated_client import CompletionError, complete_on_one
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from support.children import free_port
from support.running_node import DISAGG_NODE, RunningNode

WORKER, SERVED = "mixed-0", "llama-8b"
# Whether a step computes prompts, and whether it decodes.
_KIND_OF = {(True, False): "context", (False, True): "generation", (True, True): "mixed"}
_KINDS = tuple(_KIND_OF.values())
_COUNTED = ("steps", "step_seconds")
_EVERY_SECONDS = 2.0
_AT_ONCE = 400
_REQUEST_SECONDS = 120.0
# The plugin sends its records after a tenth of a second; the page is made each second.
_REPORTED_SECONDS = 3.0
# The daemon commits time some ten seconds late.
_COMMITTED_SECONDS = 12.0


@click.command()
@click.option("--python", required=True, help="Interpreter of vLLM's environment.")
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--load-seconds", default=30.0, help="Of each load.")
@click.option("--tune-seconds", default=75.0, help="At most, of each phase; 0: no tuning.")
@click.option("--gpus", default=1)
@click.option("--arg", "args", multiple=True, help="Of the engine.")
@click.option("--env", "env", multiple=True, help="NAME=VALUE of the engine.")
def main(
    python: str,
    model: Path,
    out: Path,
    load_seconds: float,
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
        **dict(map(_variable, env)),
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
        over = threading.Event()
        pages = threading.Thread(target=_keep_pages, args=(node, out, over))
        pages.start()
        for load in (LOADS[0], LOADS[2], LOADS[4]):
            before, begun_us = _account(node), time.monotonic_ns() // 1000
            _play(node.url(WORKER), load, load_seconds)
            time.sleep(_REPORTED_SECONDS)
            spent = {key: seconds - before[key] for key, seconds in _account(node).items()}
            _tell_steps(spent, _timed(times, begun_us))
            _say(
                out,
                f"phases-{load.name}.txt",
                ["phases", "-c", str(folder / "node.yaml"), "--wide"],
                20,
            )
        time.sleep(_COMMITTED_SECONDS)
        over.set()
        pages.join()
        _say(out, "doctor.txt", ["doctor", "-c", str(folder / "node.yaml")], 30)
        (out / "last.prom").write_bytes(fetch(node.page_url, 5.0))
    finally:
        node.process.terminate()
        node.process.wait(40)
        with gzip.open(out / "worker.log.gz", "wb") as packed:
            for log in sorted(folder.rglob(f"*{WORKER}*.log")):
                with log.open("rb") as read:
                    shutil.copyfileobj(read, packed)
        shutil.copy(folder / "daemon.log", out / "daemon.log")
        shutil.rmtree(folder, ignore_errors=True)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text}: expected NAME=VALUE", param_hint="--env")
    return name, value


def _tune(out: Path, node_file: str, seconds: float) -> None:
    engine = ["--engine", WORKER, "-c", node_file, "--json"]
    _say(out, "tune-prefill.txt", ["tune", "prefill", *engine], seconds)
    _say(out, "tune-decode.txt", ["tune", "decode", *engine, "--itl", "15ms"], seconds)


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


def _say(out: Path, name: str, arguments: list[str], seconds: float) -> None:
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [*DISAGG_NODE, *arguments], capture_output=True, text=True, timeout=seconds, check=False
        )
        text, code = done.stdout + done.stderr, str(done.returncode)
    except subprocess.TimeoutExpired as late:
        text = "".join(
            part.decode() if isinstance(part, bytes) else part or ""
            for part in (late.stdout, late.stderr)
        )
        code = "timed out"
    (out / name).write_text(text)
    click.echo(f"{name}: exit {code} after {time.monotonic() - begun:.0f} s\n{text[-1500:]}")


def _account(node: RunningNode) -> dict[tuple[str, str], float]:
    """Return the daemon's steps and their seconds so far, by kind."""
    page = node.page()
    names = [f"disagg_engine_{name}_total" for name in _COUNTED]
    return {(kind, name): page.sum(name, kind=kind) for kind in _KINDS for name in names}


def _timed(path: Path, begun_us: int) -> dict[str, list[float]]:
    """Return the seconds of each step since then as the GPU says, by kind."""
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["t_us"]) >= begun_us:
                work = bool(int(row["context_tokens"])), bool(int(row["generation_requests"]))
                seconds[_KIND_OF[work]].append(int(row["step_us"]) / 1e6)
    return seconds


def _tell_steps(spent: dict[tuple[str, str], float], timed: dict[str, list[float]]) -> None:
    """Print what the daemon accounted for beside what the GPU says."""
    for kind in _KINDS:
        steps, seconds = (spent[kind, f"disagg_engine_{name}_total"] for name in _COUNTED)
        true = sum(timed[kind])
        error = f"{seconds / true - 1:+.1%}" if true else "-"
        click.echo(
            f"  {kind:10} {steps:6.0f} steps {seconds:8.3f} s, by the GPU "
            f"{len(timed[kind]):6} steps {true:8.3f} s: {error}"
        )


def _keep_pages(node: RunningNode, out: Path, over: threading.Event) -> None:
    with gzip.open(out / "pages.prom.gz", "wt", encoding="utf-8") as packed:
        while not over.wait(_EVERY_SECONDS):
            try:
                text = fetch(node.page_url, 5.0).decode()
            except DisaggError as failed:
                text = f"# {failed}\n"
            packed.write(f"# page at {time.time():.3f}\n{text}")


def _play(url: str, load: Load, seconds: float) -> None:
    dice = random.Random(7)
    begun, due, sent = time.monotonic(), 0.0, 0
    failed: list[str] = []

    def ask(words: int, tokens: int, seed: int) -> None:
        own = random.Random(seed)
        prompt = " ".join(f"t{own.randrange(3, 120_000)}" for _ in range(words))
        try:
            complete_on_one(url, SERVED, prompt, tokens, _REQUEST_SECONDS)
        except CompletionError as error:
            failed.append(str(error))

    with ThreadPoolExecutor(_AT_ONCE) as users:
        while due < seconds:
            time.sleep(max(0.0, begun + due - time.monotonic()))  # until the next user comes
            lengths = length(dice, load.prompt_tokens), length(dice, load.output_tokens)
            users.submit(ask, *lengths, sent)
            sent += 1
            due += dice.expovariate(load.per_second)
    took = time.monotonic() - begun
    click.echo(f"{load.name}: {sent} requests, {len(failed)} failed, {took:.0f} s {failed[:1]}")


if __name__ == "__main__":
    main()
