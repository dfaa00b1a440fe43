"""The default of `disagg-node demo`: a node file, and a load over time."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from disagg_cluster.simulator.load import Mix, Shifting

PROMPT_HEAVY = Mix(requests_per_second=12.0, prompt_tokens=4000, output_tokens=6)
"""Summaries and search: prefill keeps most of its GPUs busy, decode idles half of the time."""
OUTPUT_HEAVY = Mix(requests_per_second=6.0, prompt_tokens=400, output_tokens=160)
"""Chat and code: decode never idles, prefill hardly works."""

TINY_PROMPT_HEAVY = Mix(requests_per_second=2.0, prompt_tokens=150, output_tokens=4)
TINY_OUTPUT_HEAVY = Mix(requests_per_second=1.0, prompt_tokens=10, output_tokens=48)
"""The same two ends for a tiny model on a few CPU cores, within 1,024 tokens a request."""


@dataclass(frozen=True, slots=True)
class LoadShape(Shifting):
    """A load that oscillates between the two ends within three minutes."""

    high: Mix = PROMPT_HEAVY
    low: Mix = OUTPUT_HEAVY
    period_seconds: float = 180.0


METRICS_ADDRESS = "127.0.0.1:9847"
MODEL = "demo-8b"
PRICES = "rtx-pro-6000_llama-3.1-8b_1"
"""Steps as measured of an 8B model on one GPU, whatever the worker's number of GPUs."""
PREFILL_WORKERS = 4
DECODE_WORKERS = 2
DECODE_GPUS = 2
WORKERS = PREFILL_WORKERS + DECODE_WORKERS
GPUS = PREFILL_WORKERS + DECODE_WORKERS * DECODE_GPUS
GPU_PRICE = {"currency": "USD", "per_hour": 2.5}
"""Invented, like the GPUs: it lets the demo show costs."""

# Below the kernel's ephemeral ports (32768 and up), or a probe of one worker may occupy the port of
# the next; also below Kubernetes' node ports. Drawn separately in each process, without repetition.
_PORTS = cycle(random.Random().sample(range(20_000, 30_000), 10_000))
_MOST_TRIED = 100


def demo_node_file(
    ports: Sequence[int], *, metrics_address: str = METRICS_ADDRESS, run_dir: str | None = None
) -> dict[str, Any]:
    """Return the node file as parsed YAML: 4 + 4 simulated GPUs under stand-in engines.

    Args:
        ports: One port for each of the `WORKERS`, prefill first.
        metrics_address: Where the page is served; loopback only, as it then needs no protection.
        run_dir: Folder of sockets and logs, the node's default when None.
    """
    if len(ports) != WORKERS:
        raise ValueError(f"the demo has {WORKERS} workers, not {len(ports)}")
    prefill = [_worker(f"prefill-{i}", "prefill", [i], ports[i]) for i in range(PREFILL_WORKERS)]
    decode = [
        _worker(
            f"decode-{i}",
            "decode",
            list(range(PREFILL_WORKERS + i * DECODE_GPUS, PREFILL_WORKERS + (i + 1) * DECODE_GPUS)),
            ports[PREFILL_WORKERS + i],
        )
        for i in range(DECODE_WORKERS)
    ]
    node_file: dict[str, Any] = {
        "node": "demo-node",
        "cluster": "demo",
        "devices": "sim",
        "sim_devices": GPUS,
        "gpu_price": GPU_PRICE,
        "listen": {"metrics": metrics_address},
        "workers": prefill + decode,
    }
    if run_dir is not None:
        node_file["run_dir"] = run_dir
    return node_file


def free_ports(count: int) -> list[int]:
    """Return distinct loopback ports on which nothing listens now.

    Another program may take one before it is used: the worker then fails to start with a message.

    Raises:
        OSError: None was found.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            _bind_freely(each)
        return [int(each.getsockname()[1]) for each in sockets]


def _bind_freely(listener: socket.socket) -> None:
    last: OSError | None = None
    for port in islice(_PORTS, _MOST_TRIED):
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            last = error
        else:
            return
    raise OSError(f"none of {_MOST_TRIED} ports of 127.0.0.1 could be had") from last


def _worker(name: str, role: str, gpus: list[int], port: int) -> dict[str, Any]:
    return {
        "name": name,
        "engine": "standin",
        "role": role,
        "gpus": gpus,
        "model": MODEL,
        "port": port,
        "args": ["--prices", PRICES],
        "deadlines": {"start_seconds": 20, "drain_seconds": 5, "stop_seconds": 5},
    }
