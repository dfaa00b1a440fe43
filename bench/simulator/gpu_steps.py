"""A price table from steps that we recorded on a GPU: `python -m bench.simulator.gpu_steps FOLDER`.

`bench.gpu_steps` recorded them in a vLLM without async scheduling, in one process: its sweep has
prompts alone and decoding alone. A server schedules asynchronously, so that the GPU does not wait
for the host; what the host takes in a step is therefore left out. The recording has mixed steps,
too, but one or two of each size: the table has none, and the sum of both halves is held against
served steps instead (docs/simulator.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from bench.gpu_steps.sweep import CHUNKS, KV_TOKENS, PASTS, WRITERS
from bench.gpu_steps.watch import WatchedStep
from bench.real.recorded import SWEEP, recorded

from disagg_cluster.simulator.engine.hardware import LLAMA_8B
from disagg_cluster.simulator.prices.grid import Point
from disagg_cluster.simulator.prices.table_text import render_table

HOST_US = 1500.0
HOST_REQUEST_US = 11.0
"""What the host takes in a step, and for each request that decodes.

The median decode step of the sweep less the median of as large a batch of the same engine as a
server with async scheduling, by CUDA events (`timed.csv.gz`): 1.6 ms at 1 to 16 requests, 2.2 ms at
64.
"""
LICENCE = "Apache-2.0, of disagg-node itself"

# Up to this many tokens decode steps, which are launched as CUDA graphs, show what tokens cost. Of
# prompts alone the smallest wait for their launch.
_DECODED_TOKENS = 256
_LEAST_CHUNK = 128
_LEAST_US = 1.0


def convert(steps: Sequence[WatchedStep], gpu: str, source: str) -> str:
    """Return the text of a table of an 8B model by the sweep of a recording.

    A decode step is a line over the KV that each request reads. Of the tokens of a step, decode
    steps and prompts alone must say the same; what the former take more at the largest batches is
    the head and the sampler.
    """
    alone = _prompts_alone(steps)
    lines = {writers: _line(steps, writers) for writers in WRITERS}
    large = [writers for writers in WRITERS if writers >= _DECODED_TOKENS // 2]
    head_us = median((lines[each][0] - alone[each, 0]) / each for each in large)
    pair_us = median(
        (alone[chunk, PASTS[-1]] - alone[chunk, 0]) / (chunk * PASTS[-1])
        for chunk in CHUNKS
        if chunk > _DECODED_TOKENS
    )
    tokens: dict[Point, float] = {
        (writers,): line[0] - head_us * writers for writers, line in lines.items()
    }
    tokens |= {
        (chunk,): alone[chunk, 0] - pair_us * chunk**2 / 2
        for chunk in CHUNKS
        if chunk > _DECODED_TOKENS
    }
    sizes = sorted(size for (size,) in tokens)
    of_tokens = [tokens[size,] for size in sizes]
    return render_table(
        {
            "gpu": gpu,
            "model": LLAMA_8B.name,
            "gpus": "1",
            "all_reduce": "none",
            "source": source,
            "licence": LICENCE,
        },
        {
            "tokens": tokens,
            "requests": {(writers,): head_us * writers for writers in (1, WRITERS[-1])},
            "context": {
                (chunk, past): max(
                    _LEAST_US, alone[chunk, past] - float(np.interp(chunk, sizes, of_tokens))
                )
                for chunk, past in product(CHUNKS, PASTS)
                if chunk >= _LEAST_CHUNK
            },
            "decode": {
                (writers, kv): max(_LEAST_US, line[1] * kv)
                for writers, line in lines.items()
                for kv in (KV_TOKENS[0], KV_TOKENS[-1])
            },
        },
    )


def _prompts_alone(steps: Sequence[WatchedStep]) -> dict[tuple[int, int], float]:
    """Return microseconds by chunk and past; the better of two rounds, the first warms up."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in _sweep(steps):
        if step.context_requests == 1 and not step.generation_requests:
            found[step.context_tokens, step.context_past_tokens].append(step.step_us - HOST_US)
    for chunk, past in product(CHUNKS, PASTS):
        if (chunk, past) not in found:
            raise KeyError(f"a prompt's {chunk} tokens after {past}")
    return {size: min(all_us) for size, all_us in found.items()}


def _line(steps: Sequence[WatchedStep], writers: int) -> tuple[float, float]:
    """Return microseconds of a decode step without KV, and for each token of it a request reads."""
    decode = [
        (step.generation_kv_tokens / writers, step.step_us - HOST_US - HOST_REQUEST_US * writers)
        for step in _sweep(steps)
        if step.generation_requests == writers and not step.context_tokens
    ]
    if not decode:
        raise KeyError(f"{writers} requests that decode")
    slope, start = np.polyfit(*zip(*decode, strict=True), 1)
    return float(start), float(slope)


def _sweep(steps: Sequence[WatchedStep]) -> list[WatchedStep]:
    return [step for step in steps if step.part.startswith(SWEEP)]


def convert_folder(folder: Path) -> str:
    """Return the text of a table by the recording in a folder.

    Raises:
        OSError: A file is missing.
        KeyError: The sweep lacks a size.
    """
    engine = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
    source = (
        f"recorded by bench.gpu_steps on {engine['date']}: vLLM {engine['vllm']}, PyTorch "
        f"{engine['torch']}; host time left out, no mixed batch"
    )
    return convert(recorded(folder / "steps.csv.gz"), engine["gpu"], source)


def main() -> int:
    """Convert one recording and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator.gpu_steps")
    parser.add_argument("folder", type=Path, help="what bench.gpu_steps wrote, of the whole sweep")
    folder = parser.parse_args().folder
    try:
        sys.stdout.write(convert_folder(folder))
    except OSError as error:
        parser.error(f"{folder} holds no recording of bench.gpu_steps: {error}")
    except KeyError as error:
        parser.error(f"{folder} holds no whole sweep, without steps of {error.args[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
