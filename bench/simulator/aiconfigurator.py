"""Price tables from NVIDIA's kernel tables: `python -m bench.simulator.aiconfigurator --help`.

`aiconfigurator-core` (the extra `bench`; Apache-2.0) composes the time of a step of kernels
measured for a backend. A table keeps its prompt-only and decode-only steps, divided into a part by
tokens and attention; it measured no mixed batch, so the table has none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import version

from bench.real.wheel import WheelSteps

from disagg_cluster.simulator.engine import hardware
from disagg_cluster.simulator.engine.hardware import Gpu, Model
from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_cluster.simulator.prices.grid import Point
from disagg_cluster.simulator.prices.table_text import render_table

SYSTEMS = {
    "a100_sxm": hardware.A100,
    "b200_sxm": hardware.B200,
    "h100_sxm": hardware.H100,
    "h200_sxm": hardware.H200,
    "l40s": hardware.L40S,
}
MODELS = {
    "meta-llama/Meta-Llama-3.1-8B": hardware.LLAMA_8B,
    "meta-llama/Meta-Llama-3.1-70B": hardware.LLAMA_70B,
    "openai/gpt-oss-120b": hardware.GPT_OSS_120B,
    "Qwen/Qwen3-32B": hardware.QWEN3_32B,
}
LICENCE = "Apache-2.0, Copyright (c) NVIDIA CORPORATION & AFFILIATES"

_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448)
_TOKENS += (512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 6144, 8192)
_CHUNKS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_CONTEXTS = (0, 256, 1024, 4096, 16384, 65536)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_READ = (1, 128, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_LEAST_MICROS = 1.0

Ask = Callable[[BatchWork], float]
"""Microseconds of a step with this work."""


def convert(ask: Ask, gpu: Gpu, model: Model, gpus: int, source: str) -> str:
    """Return the text of a table of the times that `ask` gives."""
    return render_table(
        {
            "gpu": gpu.name,
            "model": model.name,
            "gpus": str(gpus),
            "all_reduce": "none" if gpus == 1 else "included",
            "source": source,
            "licence": LICENCE,
        },
        _parts(ask),
    )


def _parts(ask: Ask) -> dict[str, dict[Point, float]]:
    """Divide steps into the cost of their tokens, of whichever requests, and the rest.

    The first is the cheaper of a decode step with as many requests and almost no context, and of a
    prompt of as many tokens less its own attention; so the parts of every step add up to it.
    """
    prompts = {tokens: _never_cheaper(ask, tokens) for tokens in {*_TOKENS, *_CHUNKS}}
    whole = {(n, read): ask(_writers(n, read)) for n in _REQUESTS for read in _READ}
    near, far = _CONTEXTS[-3:-1]
    by_tokens: dict[int, float] = {}
    for tokens, micros in prompts.items():
        own = (micros[far] - micros[near]) / (far - near) * (tokens + 1) / 2
        by_tokens[tokens] = min(micros[0] - own, whole.get((tokens, _READ[0]), micros[0]))
    return {
        "tokens": {(tokens,): micros for tokens, micros in by_tokens.items()},
        "context": {
            (chunk, kv_tokens): max(_LEAST_MICROS, prompts[chunk][kv_tokens] - by_tokens[chunk])
            for chunk in _CHUNKS
            for kv_tokens in _CONTEXTS
        },
        "decode": {
            (n, read): max(_LEAST_MICROS, micros - by_tokens[n])
            for (n, read), micros in whole.items()
        },
    }


def _never_cheaper(ask: Ask, tokens: int) -> dict[int, float]:
    """Return a prompt's steps by the context before it, made non-decreasing.

    The wheel's times of short chunks fall by up to a twentieth before they rise.
    """
    times = {kv_tokens: ask(_prompt(tokens, kv_tokens)) for kv_tokens in _CONTEXTS}
    return {here: min(times[kv] for kv in _CONTEXTS if kv >= here) for here in _CONTEXTS}


def _prompt(tokens: int, before: int) -> BatchWork:
    pairs = tokens * before + tokens * (tokens + 1) // 2
    return BatchWork(tokens, pairs, before + tokens)


def _writers(requests: int, read: int) -> BatchWork:
    return BatchWork(writers=requests, writers_kv_tokens=requests * read)


def main() -> int:
    """Convert the wheel's times of one model on one system, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator.aiconfigurator")
    parser.add_argument("system", choices=SYSTEMS, help="the GPU, as the wheel names it")
    parser.add_argument("model", choices=MODELS, help="the model, as the wheel names it")
    parser.add_argument("gpus", type=int, help="the size of its tensor-parallel group")
    options = parser.parse_args()
    source = (
        f"PyPI aiconfigurator-core {version('aiconfigurator-core')}, native model of vLLM, "
        f"{options.model} on {options.system}: composed of measured kernels"
    )
    steps = WheelSteps(options.model, options.system, options.gpus, expert_parallel=False)
    gpu, model = SYSTEMS[options.system], MODELS[options.model]

    def ask(work: BatchWork) -> float:
        return steps.price(work).seconds * 1e6

    sys.stdout.write(convert(ask, gpu, model, options.gpus, source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
