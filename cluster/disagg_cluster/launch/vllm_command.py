"""What a vLLM engine is started with."""

from __future__ import annotations

import json
from collections.abc import Mapping

from disagg_cluster.config import KvTransfer, Worker
from disagg_exporter.model import Role

PLUGIN_NAME = "disagg_steps"
"""The entry point by which an engine knows our plugin (in `VLLM_PLUGINS`, too)."""

MEASURED = "the node counts an engine's GPU-seconds from what it tells of its steps"

OWN_ARGUMENTS: Mapping[str, str] = {
    "--model": "say it with the key model",
    "--served-model-name": "say it with the key served_model_name",
    "--host": "say it with the key host",
    "--port": "say it with the key port",
    "--tensor-parallel-size": "say it with the key tensor_parallel_size",
    "-tp": "say it with the key tensor_parallel_size",
    "--kv-transfer-config": "say it with the key kv_transfer",
    "--enable-logging-iteration-details": "it is always given",
    "--no-enable-logging-iteration-details": MEASURED,
    "--disable-log-stats": MEASURED,
    "--headless": "a worker has a server; a follower is started by hand, and attached to",
}
"""Arguments that a node file may not give to vLLM, with the reason."""

OWN_VARIABLES: Mapping[str, str] = {
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": "say it with the key kv_transfer.side_channel_port",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "say it with the key kv_transfer.side_channel_port",
}
"""Variables that a node file may not set for vLLM, with the reason."""

OTHER_SIZES: Mapping[str, str] = {
    "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline",
    "--data-parallel-size": "data",
    "-dp": "data",
}
"""Arguments that multiply the number of GPUs it needs."""

_KV_ROLE_OF = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def vllm_argv(worker: Worker) -> tuple[str, ...]:
    """Its program and arguments."""
    argv = [worker.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", worker.model, "--served-model-name", worker.model_name]
    argv += ["--host", worker.host, "--port", str(worker.port)]
    argv += ["--tensor-parallel-size", str(worker.tp_size)]
    argv += ["--enable-logging-iteration-details"]
    if worker.kv_transfer is not None:
        argv += ["--kv-transfer-config", _kv_transfer_json(worker.kv_transfer, worker.role)]
    return (*argv, *worker.arguments)


def vllm_variables(worker: Worker) -> dict[str, str]:
    """What its environment has beside the worker's own variables; some of those may come first."""
    variables: dict[str, str] = {}
    ports = worker.side_channel_ports
    if ports and worker.uses_bootstrap:
        variables["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(ports.start)
    elif ports:
        # It is variables to the peers as it is: where the engine listens on all addresses, the file
        # has to say by which one they reach it.
        host = worker.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", worker.probe_host)
        variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host
        variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(ports.start)
    if "VLLM_PLUGINS" in worker.env:
        variables["VLLM_PLUGINS"] = with_our_plugin(worker.env["VLLM_PLUGINS"])
    return variables


def with_our_plugin(plugins: str) -> str:
    """A value of `VLLM_PLUGINS` that lets our plugin in, too."""
    names = [name for name in plugins.split(",") if name]
    return ",".join(names if PLUGIN_NAME in names else [*names, PLUGIN_NAME])


def _kv_transfer_json(kv_transfer: KvTransfer, role: Role) -> str:
    settings: dict[str, object] = {
        "kv_connector": kv_transfer.connector,
        "kv_role": kv_transfer.role or _KV_ROLE_OF.get(role, "kv_both"),
    }
    if kv_transfer.buffer_device is not None:
        settings["kv_buffer_device"] = kv_transfer.buffer_device
    if kv_transfer.extra_config:
        settings["kv_connector_extra_config"] = kv_transfer.extra_config
    return json.dumps(settings, separators=(",", ":"))
