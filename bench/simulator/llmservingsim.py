"""Price tables from layer times of LLMServingSim: `python -m bench.simulator.llmservingsim --help`.

Its profiler measures each layer of a model in vLLM, attention in mixed batches included
(github.com/casys-kaist/LLMServingSim, MIT). Of its four-dimensional attention a table keeps all
prompt-only and decode-only batches at powers of two, and a coarser grid of the mixed ones.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from disagg_cluster.simulator.engine.hardware import (
    LLAMA_8B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    RTX_PRO_6000,
    Model,
)
from disagg_cluster.simulator.prices.grid import Point
from disagg_cluster.simulator.prices.table_text import render_table

MODELS = {
    "meta-llama/Llama-3.1-8B": LLAMA_8B,
    "Qwen/Qwen3-32B": QWEN3_32B,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": QWEN3_30B_A3B,
}
SOURCE = "github.com/casys-kaist/LLMServingSim 5daddb2, profiler/perf: vLLM 0.19.0, eager kernels"
LICENCE = "MIT, Copyright (c) 2024, CASYS Lab at KAIST"

_ONCE = ("embedding", "final_layernorm")
_TWICE_A_LAYER = ("layernorm",)
_POWERS = frozenset((0, *(2**power for power in range(15))))
_MIXED = (
    frozenset((16, 128, 512, 1024, 2048)),
    frozenset((0, 1024, 8192)),
    frozenset((1, 16, 64, 128)),
    frozenset((16, 512, 1024, 2048, 4096, 16384)),
)


def convert(folder: Path, model: Model, gpus: int) -> str:
    """Return the text of a table from the CSV files of one model and group size.

    Raises:
        OSError: A file is missing.
        KeyError: A file has other columns.
    """
    dense = _by_layer(folder / "dense.csv", "tokens")
    values: dict[str, dict[Point, float]] = {
        "tokens": _sum(dense, {name: _times(name, model) for name in dense}),
        "requests": _sum(_by_layer(folder / "per_sequence.csv", "sequences")),
    }
    values |= _attention(folder / "attention.csv", model)
    if model.experts > 1:
        values["experts"] = _experts(folder / "moe.csv", model)
    head = {
        "gpu": RTX_PRO_6000.name,
        "model": model.name,
        "gpus": str(gpus),
        "all_reduce": "none" if gpus == 1 else "excluded",
        "source": SOURCE,
        "licence": LICENCE,
    }
    return render_table(head, values)


def _times(layer: str, model: Model) -> int:
    if layer in _ONCE:
        return 1
    return model.layers * (2 if layer in _TWICE_A_LAYER else 1)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def _by_layer(path: Path, size: str) -> dict[str, dict[int, float]]:
    layers: dict[str, dict[int, float]] = defaultdict(dict)
    for row in _rows(path):
        layers[row["layer"]][int(row[size])] = float(row["time_us"])
    return layers


def _sum(
    layers: dict[str, dict[int, float]], often: dict[str, int] | None = None
) -> dict[Point, float]:
    """Return all layers together, at the sizes at which each of them was measured."""
    sizes = set.intersection(*map(set, layers.values()))
    often = often or {}
    return {
        (size,): sum(times[size] * often.get(name, 1) for name, times in layers.items())
        for size in sizes
    }


def _attention(path: Path, model: Model) -> dict[str, dict[Point, float]]:
    parts: dict[str, dict[Point, float]] = {"context": {}, "decode": {}, "mixed": {}}
    for row in _rows(path):
        point = tuple(
            int(row[axis]) for axis in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        )
        micros = float(row["time_us"]) * model.layers
        chunk, kv_tokens, requests, read = point
        if not all(size in _POWERS for size in point):
            continue
        if not requests:
            parts["context"][chunk, kv_tokens] = micros
        elif not chunk:
            parts["decode"][requests, read] = micros
        elif all(size in kept for size, kept in zip(point, _MIXED, strict=True)):
            parts["mixed"][point] = micros
    return parts


def _experts(path: Path, model: Model) -> dict[Point, float]:
    """Return times by tokens and active experts; impossible numbers of experts as the maximum."""
    measured: dict[int, dict[int, float]] = defaultdict(dict)
    for row in _rows(path):
        micros = float(row["time_us"]) * model.layers
        measured[int(row["tokens"])][int(row["activated_experts"])] = micros
    active = sorted({each for times in measured.values() for each in times})
    return {
        (tokens, each): times.get(each, times[max(times)])
        for tokens, times in measured.items()
        for each in active
    }


def main() -> int:
    """Convert one folder and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator.llmservingsim")
    parser.add_argument("folder", type=Path, help="profiler/perf/RTXPRO6000/MODEL/bf16/tpN")
    parser.add_argument("model", choices=MODELS, help="the model of the files")
    parser.add_argument("gpus", type=int, help="the size of its tensor-parallel group")
    options = parser.parse_args()
    sys.stdout.write(convert(options.folder, MODELS[options.model], options.gpus))
    return 0


if __name__ == "__main__":
    sys.exit(main())
