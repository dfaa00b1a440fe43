"""The command and environment of an SGLang engine."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_cluster.config import Worker
from disagg_exporter.model import Role

_BY_ROLE = "say it with the key role"

OWN_ARGUMENTS: Mapping[str, str] = {
    "--model-path": "say it with the key model",
    "--model": "say it with the key model",
    "--served-model-name": "say it with the key served_model_name",
    "--host": "say it with the key host",
    "--port": "say it with the key port",
    "--tp-size": "say it with the key tensor_parallel_size",
    "--tensor-parallel-size": "say it with the key tensor_parallel_size",
    "--tp": "say it with the key tensor_parallel_size",
    "--base-gpu-id": "say it with the key gpus",
    "--gpu-id-step": "say it with the key gpus",
    "--disaggregation-mode": _BY_ROLE,
    "--encoder-only": _BY_ROLE,
    "--disaggregation-transfer-backend": "say it with the key kv_transfer.connector",
    "--disaggregation-bootstrap-port": "say it with the key kv_transfer.side_channel_port",
    "--enable-metrics": "it is always given",
    "--node-rank": "a worker leads; a follower is started by hand, and attached to",
}
"""Arguments that a node file may not give to SGLang, with the reason."""

OWN_VARIABLES: Mapping[str, str] = {
    "SGLANG_ENABLE_METRICS_DEVICE_TIMER": "the node counts an engine's GPU-seconds from its timer",
}
"""Variables that a node file may not set for SGLang, with the reason."""

OTHER_SIZES: Mapping[str, str] = {
    "--pp-size": "pipeline",
    "--pipeline-parallel-size": "pipeline",
    "--dp-size": "data",
    "--data-parallel-size": "data",
}
"""Arguments that multiply the number of GPUs an engine needs."""

DATA_WITHIN_TENSOR = "--enable-dp-attention"
"""With this argument the data-parallel ranks share the GPUs of the tensor-parallel ones."""

_BACKENDS = {"NixlConnector": "nixl", "MooncakeConnector": "mooncake"}
_OWN_BACKENDS = ("nixl", "mooncake", "mooncake_tcp", "mori", "ascend")


def transfer_backend(connector: str) -> str | None:
    """Return SGLang's name for a vLLM connector; its own names are accepted, too.

    None if it has no such transfer backend.
    """
    return connector if connector in _OWN_BACKENDS else _BACKENDS.get(connector)


def sglang_argv(worker: Worker) -> tuple[str, ...]:
    """Return an SGLang engine's program and arguments."""
    argv = [worker.python, "-m", "sglang.launch_server"]
    argv += ["--model-path", worker.model, "--served-model-name", worker.model_name]
    argv += ["--host", worker.host, "--port", str(worker.port)]
    argv += ["--tp-size", str(worker.tp_size), "--enable-metrics"]
    kv = worker.kv_transfer
    if worker.role in (Role.PREFILL, Role.DECODE) and kv is not None:
        backend = transfer_backend(kv.connector)
        argv += ["--disaggregation-mode", worker.role.value]
        argv += ["--disaggregation-transfer-backend", backend or kv.connector]
        if kv.side_channel_port is not None:
            argv += ["--disaggregation-bootstrap-port", str(kv.side_channel_port)]
    if worker.role is Role.ENCODE:
        argv += ["--encoder-only"]
    return (*argv, *worker.arguments)


def sglang_variables(worker: Worker) -> dict[str, str]:
    """Return its variables besides the worker's own, some of which may take precedence."""
    # A health request would otherwise make an idle engine generate a token: GPU work every second
    # that no user asked for. A scheduler that hangs is ended by SGLang's own watchdog.
    quiet = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
    return {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1", quiet: worker.env.get(quiet, "false")}
