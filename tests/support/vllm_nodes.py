"""Node files for real vLLM on the CPU: a prefill and a decode worker, by connector.

Plain mappings with the node file's keys; write them with `yaml.safe_dump`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.children import free_port
from support.vllm_pair import truth_environment

MODEL_NAME = "tiny"

# Arguments of the demo's tiny_model.py. On one thread a step of the tiny model takes 2 ms
# (prefill of 80 tokens 8 ms), of the slow one 28 ms (50 ms): there, the 0.1 to 1 ms by which an
# engine's own figure exceeds the truth of a step do not count. 37 MB, and 1.9 GB a worker.
TINY_MODEL = ("--hidden", "128", "--layers", "2")
SLOW_MODEL = ("--hidden", "128", "--layers", "64")
# Its steps are arithmetic and reading weights, like a real model's: 26 ms to decode, 220 ms for a
# chunk of 128 tokens. Those of the slow one are mostly Python between 64 layers, and the same step
# takes 24 ms or 46, depending on other work on the machine.
WIDE_MODEL = ("--hidden", "1024", "--layers", "8")
# A prompt of 2000 tokens takes it some 20 s, in one step. 1.8 GB, and twice that a worker.
LONG_MODEL = ("--hidden", "2048", "--layers", "12")

# One block size and a fixed number of blocks: without them the engine measures memory for half
# a minute and takes twice as much of it.
ENGINE_ARGS = (
    *("--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"),
    *("--dtype", "float32", "--seed", "0"),
    *("--block-size", "32", "--num-gpu-blocks-override", "512"),
)
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
NIXL_ENVIRONMENT = {
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}


def truth_file(run_dir: Path, worker: str) -> Path:
    """Return where the worker of that name writes its truth."""
    return run_dir / f"{worker}.truth"


def aggregated_node(
    *,
    python: Path,
    model: Path,
    run_dir: Path,
    metrics_port: int,
    port: int,
    args: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return one engine that does both phases, to compare the pairs' texts with.

    `args` follow the usual ones, which they may override.
    """
    worker = _worker("mixed-0", "mixed", python=python, model=model, run_dir=run_dir, port=port)
    worker["args"] += args
    return _node(run_dir, metrics_port, [worker])


def example_connector_node(
    *, python: Path, model: Path, run_dir: Path, metrics_port: int, ports: tuple[int, int]
) -> dict[str, Any]:
    """Return a pair that transfers KV through files under `run_dir`; `ports` are prefill, decode.

    Only whole blocks are transferred: the decode engine prefills the last 2 to 33 tokens of each
    prompt.
    """
    storage = str(run_dir / "kv")
    transfer = {
        "connector": "ExampleConnector",
        "role": "kv_both",
        "extra_config": {"shared_storage_path": storage},
    }
    workers = [
        _worker(f"{role}-0", role, python=python, model=model, run_dir=run_dir, port=port)
        | {"kv_transfer": transfer}
        for role, port in zip(("prefill", "decode"), ports, strict=True)
    ]
    return _node(run_dir, metrics_port, workers)


def nixl_node(
    *,
    python: Path,
    model: Path,
    run_dir: Path,
    metrics_port: int,
    ports: tuple[int, int],
    side_channel_ports: tuple[int, int],
) -> dict[str, Any]:
    """Return a pair that transfers KV with NIXL over TCP; `ports` are prefill, decode.

    In an environment without the demo's calm waits each worker spins on most of a core, and a
    request can take half a minute.
    """
    return nixl_engines_node(
        {"prefill-0": "prefill", "decode-0": "decode"},
        python=python,
        model=model,
        run_dir=run_dir,
        metrics_port=metrics_port,
        ports=ports,
        side_channel_ports=side_channel_ports,
    )


def nixl_engines_node(
    roles: Mapping[str, str],
    *,
    python: Path,
    model: Path,
    run_dir: Path,
    metrics_port: int,
    ports: Sequence[int],
    side_channel_ports: Sequence[int],
    args: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return prefill and decode engines by name that transfer KV with NIXL like a pair."""
    workers = []
    for (name, role), port, side_channel_port in zip(
        roles.items(), ports, side_channel_ports, strict=True
    ):
        worker = _worker(name, role, python=python, model=model, run_dir=run_dir, port=port)
        worker["args"] += args
        worker["env"] |= NIXL_ENVIRONMENT
        worker["kv_transfer"] = {
            "connector": "NixlConnector",
            "role": {"prefill": "kv_producer", "decode": "kv_consumer"}[role],
            "side_channel_port": side_channel_port,
            "buffer_device": "cpu",
            # The default lease of 30 s would expire during the slow first request.
            "extra_config": {"kv_lease_duration": 120},
        }
        workers.append(worker)
    return _node(run_dir, metrics_port, workers)


def routed_engines_node(
    roles: Mapping[str, str], *, python: Path, model: Path, run_dir: Path, router_python: Path
) -> dict[str, Any]:
    """Return engines that transfer KV with NIXL behind a router with live members."""
    node_file = nixl_engines_node(
        roles,
        python=python,
        model=model,
        run_dir=run_dir,
        metrics_port=free_port(),
        ports=[free_port() for _ in roles],
        side_channel_ports=[free_port() for _ in roles],
    )
    node_file["router"] = {
        "python": str(router_python.absolute()),
        "port": free_port(),
        "metrics_port": free_port(),
        "membership": "live",
    }
    return node_file


def _worker(
    name: str, role: str, *, python: Path, model: Path, run_dir: Path, port: int
) -> dict[str, Any]:
    return {
        "name": name,
        "engine": "vllm",
        "role": role,
        "model": str(model),
        "served_model_name": MODEL_NAME,
        "python": str(python),
        "port": port,
        "args": list(ENGINE_ARGS),
        "env": CPU_ENVIRONMENT | truth_environment(truth_file(run_dir, name)),
        "deadlines": {"start_seconds": 300, "drain_seconds": 30, "stop_seconds": 10},
    }


def _node(run_dir: Path, metrics_port: int, workers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "node": "test-node",
        "devices": "cpu",
        "run_dir": str(run_dir),
        "listen": {"metrics": f"127.0.0.1:{metrics_port}"},
        "workers": workers,
    }
