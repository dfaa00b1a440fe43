"""The demo with real engines: a tiny model and the node file of a vLLM pair that serves it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disagg_cluster.demo.real_vllm import tiny_model
from disagg_exporter.errors import DisaggError

MODEL_NAME = "tiny"
WORKERS = 2
PORTS = 2 * WORKERS
_MODEL_SECONDS = 300.0
# On one core a step then takes some tens of milliseconds: long enough to observe.
_SIZE = ("--hidden", "128", "--layers", "64")

# A fixed number of small blocks: profiling memory would take half a minute, and twice the memory.
_ARGS = (
    *("--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager", "--dtype", "float32"),
    *("--block-size", "32", "--num-gpu-blocks-override", "512"),
)
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
# Both engines share the machine's cores; each takes one.
_CPU_ENVIRONMENT = {
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


class ModelFailed(DisaggError):  # noqa: N818 - says what happened
    """The tiny model could not be written; the text holds the output of the engine's Python."""


def make_model(python: Path, folder: Path) -> None:
    """Write the tiny random model with the engine's own interpreter; takes some seconds."""
    argv = [str(python), tiny_model.__file__, str(folder), *_SIZE]
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=_MODEL_SECONDS)
    except OSError as error:
        raise ModelFailed(f"cannot run {python}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ModelFailed(f"no model after {_MODEL_SECONDS:g} s: {python}") from error
    except subprocess.CalledProcessError as error:
        raise ModelFailed(
            f"{python} could not write the demo's model; does it have vLLM? It said:\n"
            f"{error.stderr[-2000:]}"
        ) from error


def pair_node_file(
    python: Path,
    model: Path,
    ports: Sequence[int],
    *,
    gpus: int,
    metrics_address: str,
    run_dir: str,
) -> Mapping[str, Any]:
    """Return the node file of one prefill and one decode engine.

    The KV goes over NIXL, on the CPU over TCP.

    Args:
        python: The engines' interpreter.
        model: The model's folder.
        ports: Two for each engine: its own and that of its KV side channel; prefill first.
        gpus: How many GPUs the node has; below two both engines run on the CPU.
        metrics_address: Where the page is served.
        run_dir: For sockets, logs and the KV.
    """
    on_gpus = gpus >= WORKERS
    workers = [
        {
            "name": f"{role}-0",
            "engine": "vllm",
            "role": role,
            "model": str(model),
            "served_model_name": MODEL_NAME,
            "python": str(python),
            "port": ports[2 * number],
            "args": list(_ARGS),
            "env": _ENVIRONMENT if on_gpus else {**_ENVIRONMENT, **_CPU_ENVIRONMENT},
            "kv_transfer": {
                "connector": "NixlConnector",
                "side_channel_port": ports[2 * number + 1],
                **({} if on_gpus else {"buffer_device": "cpu"}),
            },
            "deadlines": {"start_seconds": 300, "drain_seconds": 10, "stop_seconds": 10},
            **({"gpus": 1} if on_gpus else {}),
        }
        for number, role in enumerate(("prefill", "decode"))
    ]
    return {
        "node": "demo-node",
        "cluster": "demo",
        "devices": "nvml" if on_gpus else "cpu",
        "run_dir": run_dir,
        "listen": {"metrics": metrics_address},
        "workers": workers,
    }
