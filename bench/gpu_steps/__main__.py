"""Record the steps of a real vLLM engine on one GPU: `python -m bench.gpu_steps`.

The engine runs in this process, so that the work of each step is known as it was scheduled. First
a *sweep*: every combination of prompt piece, its past, requests that decode and their KV, each
alone and together, so that the truth of a mixed step's parts is measured and not modelled. Then
*loads*: users that arrive at random. Writes `steps.csv`, `power.csv` and `engine.json`.
"""

from __future__ import annotations

import csv
import json
import random
import time
from pathlib import Path
from typing import Any

import click
from bench.gpu_steps.loads import LOADS, play
from bench.gpu_steps.power import POWER_COLUMNS, PowerSamples
from bench.gpu_steps.sweep import Sweep
from bench.gpu_steps.watch import COLUMNS, StepWatch

_IDLE_SECONDS = 3.0
"""The power samples begin with the idle GPU."""


@click.command()
@click.option(
    "--model",
    required=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder with the model's config.json.",
)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--sweep-seconds", default=120.0)
@click.option("--load-seconds", default=25.0, help="Of each load.")
@click.option("--max-tokens", default=8192, help="max_num_batched_tokens.")
@click.option("--small", is_flag=True, help="A few points only, to try the recording itself.")
@click.option("--set", "more", multiple=True, help="NAME=JSON of a further engine argument.")
def main(
    model: str,
    out: Path,
    sweep_seconds: float,
    load_seconds: float,
    max_tokens: int,
    small: bool,
    more: tuple[str, ...],
) -> None:
    """Record an engine's steps."""
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    engine = _engine(model, max_tokens, more)
    core = engine.engine_core.engine_core
    watch = StepWatch(core)
    click.echo(f"engine ready after {time.monotonic() - begun:.0f} s")
    facts = _facts(core, model)
    (out / "engine.json").write_text(json.dumps(facts, indent=2) + "\n")
    click.echo(json.dumps(facts))
    dice = random.Random(1)
    with PowerSamples(watch.begun_ns) as power:
        try:
            time.sleep(_IDLE_SECONDS)
            Sweep(engine, watch, dice, max_tokens, small=small).run(sweep_seconds)
            _keep(out, watch, power)
            for load in LOADS:
                click.echo(f"load {load.name} at {time.monotonic() - begun:.0f} s")
                play(engine, watch, load, load_seconds, dice)
                _keep(out, watch, power)
        finally:
            _keep(out, watch, power)
            click.echo(f"{len(watch.steps)} steps, {time.monotonic() - begun:.0f} s")


def _engine(model: str, max_tokens: int, more: tuple[str, ...]) -> Any:
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as missing:
        raise click.ClickException(
            f"run it with the Python of vLLM's environment: {missing}"
        ) from None

    arguments: dict[str, Any] = {
        "model": model,
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": 16384,
        "max_num_batched_tokens": max_tokens,
        "max_num_seqs": 256,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "disable_log_stats": True,
    }
    for one in more:
        name, _, value = one.partition("=")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            raise click.BadParameter(f"{one}: expected NAME=JSON", param_hint="--set") from None
    return LLMEngine.from_engine_args(EngineArgs(**arguments), enable_multiprocessing=False)


def _facts(core: Any, model: str) -> dict[str, Any]:
    import torch
    import vllm

    config = core.vllm_config
    cuda = torch.cuda.is_available()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name() if cuda else "none",
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "model": json.loads((Path(model) / "config.json").read_text()),
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "kv_tokens": (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
        "block_size": config.cache_config.block_size,
    }


def _keep(out: Path, watch: StepWatch, power: PowerSamples) -> None:
    _write(out / "steps.csv", COLUMNS, [_row(step) for step in watch.steps])
    _write(out / "power.csv", POWER_COLUMNS, power.rows)


def _row(step: Any) -> list[Any]:
    return [getattr(step, name) for name in COLUMNS]


def _write(path: Path, columns: tuple[str, ...], rows: list[Any]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
