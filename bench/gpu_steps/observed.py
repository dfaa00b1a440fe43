"""What the benches on a GPU record of a daemon and of its engines' users."""

from __future__ import annotations

import contextlib
import csv
import gzip
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from bench.gpu_steps.loads import Load, length

from disagg_cluster.demo.disaggregated_client import CompletionError
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from support.running_node import DISAGG_NODE, RunningNode

REPORTED_SECONDS = 3.0
"""The plugin sends its records after a tenth of a second; the page is made each second."""
COMMITTED_SECONDS = 12.0
"""The daemon commits time some ten seconds late."""
REQUEST_SECONDS = 120.0

# Whether a step computes prompts, and whether it decodes.
_KIND_OF = {(True, False): "context", (False, True): "generation", (True, True): "mixed"}
_KINDS = tuple(_KIND_OF.values())
_COUNTED = ("steps", "step_seconds")
_EVERY_SECONDS = 2.0
_AT_ONCE = 400

Ask = Callable[[str, int], object]
"""Send a prompt and wait for so many tokens; `CompletionError` if none come."""
Account = dict[tuple[str, str], float]


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which engine is measured, and where its record goes."""
    folder = click.Path(file_okay=False, path_type=Path)
    for option in (
        click.option("--env", "env", multiple=True, help="NAME=VALUE of the engine."),
        click.option("--arg", "args", multiple=True, help="Of the engine."),
        click.option("--out", required=True, type=folder),
        click.option("--model", required=True, type=click.Path(exists=True, path_type=Path)),
        click.option("--python", required=True, help="Interpreter of vLLM's environment."),
    ):
        command = option(command)
    return command


def environment(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that `--env NAME=VALUE` gives."""
    return dict(map(_variable, texts))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text}: expected NAME=VALUE", param_hint="--env")
    return name, value


@contextlib.contextmanager
def pages_kept(node: RunningNode, out: Path) -> Iterator[None]:
    """Keep the daemon's page every two seconds."""
    over = threading.Event()
    keeping = threading.Thread(target=_keep_pages, args=(node, out, over))
    keeping.start()
    try:
        yield
    finally:
        over.set()
        keeping.join()


def _keep_pages(node: RunningNode, out: Path, over: threading.Event) -> None:
    with gzip.open(out / "pages.prom.gz", "wt", encoding="utf-8") as packed:
        while not over.wait(_EVERY_SECONDS):
            try:
                text = fetch(node.page_url, 5.0).decode()
            except DisaggError as failed:
                text = f"# {failed}\n"
            packed.write(f"# page at {time.time():.3f}\n{text}")


def keep_answer(out: Path, name: str, arguments: list[str], seconds: float) -> None:
    """Run a command of ours for so long at most; write and print what it says."""
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


def play(ask: Ask, load: Load, seconds: float, rate: float = 1.0) -> None:
    """Let users arrive for so long, at `rate` of the load's frequency; wait for their answers."""
    dice = random.Random(7)
    begun, due, sent = time.monotonic(), 0.0, 0
    failed: list[str] = []

    def one(words: int, tokens: int, seed: int) -> None:
        own = random.Random(seed)
        prompt = " ".join(f"t{own.randrange(3, 120_000)}" for _ in range(words))
        try:
            ask(prompt, tokens)
        except CompletionError as error:
            failed.append(str(error))

    with ThreadPoolExecutor(_AT_ONCE) as users:
        while due < seconds:
            time.sleep(max(0.0, begun + due - time.monotonic()))  # until the next user comes
            lengths = length(dice, load.prompt_tokens), length(dice, load.output_tokens)
            users.submit(one, *lengths, sent)
            sent += 1
            due += dice.expovariate(load.per_second * rate)
    took = time.monotonic() - begun
    click.echo(f"{load.name}: {sent} requests, {len(failed)} failed, {took:.0f} s {failed[:1]}")


def account(node: RunningNode, **engine: str) -> Account:
    """Return the daemon's steps and their seconds so far, by kind; of all engines or of one."""
    page = node.page()
    names = [f"disagg_engine_{name}_total" for name in _COUNTED]
    return {(kind, name): page.sum(name, kind=kind, **engine) for kind in _KINDS for name in names}


def tell_steps(before: Account, after: Account, times: Path, begun_us: int) -> None:
    """Print what the daemon accounted for since then beside what the GPU says."""
    timed = _timed(times, begun_us)
    for kind in _KINDS:
        keys = [(kind, f"disagg_engine_{name}_total") for name in _COUNTED]
        steps, seconds = (after[key] - before[key] for key in keys)
        true = sum(timed[kind])
        error = f"{seconds / true - 1:+.1%}" if true else "-"
        click.echo(
            f"  {kind:10} {steps:6.0f} steps {seconds:8.3f} s, by the GPU "
            f"{len(timed[kind]):6} steps {true:8.3f} s: {error}"
        )


def _timed(path: Path, begun_us: int) -> dict[str, list[float]]:
    """Return the seconds of each step since then as the GPU says, by kind, if there was any."""
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    if not path.exists():
        return seconds
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["t_us"]) >= begun_us:
                work = bool(int(row["context_tokens"])), bool(int(row["generation_requests"]))
                seconds[_KIND_OF[work]].append(int(row["step_us"]) / 1e6)
    return seconds
