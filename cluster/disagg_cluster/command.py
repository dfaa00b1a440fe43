"""What a worker's process is started with: its arguments and its environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.config import KvTransfer, Worker
from disagg_cluster.layout import Placement
from disagg_exporter.model import Device, Role

PLUGIN_NAME = "disagg_steps"
"""The entry point by which an engine knows our plugin (in `VLLM_PLUGINS`, too)."""

_MEASURED = "the node counts an engine's GPU-seconds from what it tells of its steps"
OWN_ARGUMENTS: Mapping[str, str] = {
    "--model": "say it with the key model",
    "--served-model-name": "say it with the key served_model_name",
    "--host": "an engine listens on 127.0.0.1 only",
    "--port": "say it with the key port",
    "--tensor-parallel-size": "say it with the key tensor_parallel_size",
    "-tp": "say it with the key tensor_parallel_size",
    "--kv-transfer-config": "say it with the key kv_transfer",
    "--enable-logging-iteration-details": "it is always given",
    "--no-enable-logging-iteration-details": _MEASURED,
    "--disable-log-stats": _MEASURED,
}
"""Arguments that a node file may not give to vLLM, with the reason."""

OWN_VARIABLES: Mapping[str, str] = {
    "CUDA_DEVICE_ORDER": "GPUs are numbered in the order of the PCI bus",
    "CUDA_VISIBLE_DEVICES": "say it with the key gpus",
    "DISAGG_STEPS_SOCKET": _MEASURED,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "say it with the key kv_transfer.side_channel_port",
}
"""Variables that a node file may not set, with the reason."""

_NOT_INHERITED = frozenset(
    {
        "CREDENTIALS_DIRECTORY",
        "LISTEN_FDNAMES",
        "LISTEN_FDS",
        "LISTEN_PID",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
    }
)
_OUR_PREFIXES = ("DISAGG_", "_DISAGG_")
_KV_ROLE_OF = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a process: its arguments and what its environment has beside the inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def build(
    worker: Worker,
    placement: Placement,
    *,
    steps_socket: Path,
    engine_side_folder: Path,
    sim_folder: Path | None = None,
) -> Command:
    """How to start a worker's engine.

    Args:
        worker: What the node file says of it.
        placement: Its devices.
        steps_socket: Where the daemon listens for the records of this worker's steps.
        engine_side_folder: The folder that holds nothing but our plugin.
        sim_folder: Where stand-ins write what their devices do; by default `sim` beside the
            socket.
    """
    environment = {
        **worker.env,
        "PYTHONPATH": _joined(str(engine_side_folder), worker.env.get("PYTHONPATH")),
        "DISAGG_STEPS_SOCKET": str(steps_socket),
    }
    if placement.on_gpus:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(_visible, placement.devices))
    if worker.engine == "standin":
        folder = sim_folder or steps_socket.parent / "sim"
        return Command(_standin_argv(worker, placement, folder), environment)
    if worker.side_channel_ports:
        environment.setdefault("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
        environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(worker.side_channel_ports.start)
    if "VLLM_PLUGINS" in worker.env:
        environment["VLLM_PLUGINS"] = _with_our_plugin(worker.env["VLLM_PLUGINS"])
    return Command(_vllm_argv(worker), environment)


def child_environment(base: Mapping[str, str], command: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a child: what it inherits, then what its command adds.

    Not inherited are the service manager's private channels and everything of our own. A search
    path that the daemon itself was started with stays, behind the child's own.

    Args:
        base: The daemon's environment.
        command: `Command.env`.
    """
    kept = {
        name: value
        for name, value in base.items()
        if name not in _NOT_INHERITED and not name.startswith(_OUR_PREFIXES)
    }
    child = {**kept, **command}
    if "PYTHONPATH" in command:
        child["PYTHONPATH"] = _joined(command["PYTHONPATH"], kept.get("PYTHONPATH"))
    if "VLLM_PLUGINS" in child:
        child["VLLM_PLUGINS"] = _with_our_plugin(child["VLLM_PLUGINS"])
    return child


def _vllm_argv(worker: Worker) -> tuple[str, ...]:
    argv = [worker.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", worker.model, "--served-model-name", worker.model_name]
    argv += ["--host", "127.0.0.1", "--port", str(worker.port)]
    argv += ["--tensor-parallel-size", str(worker.tp_size)]
    argv += ["--enable-logging-iteration-details"]
    if worker.kv_transfer is not None:
        told = _kv_transfer_json(worker.kv_transfer, worker.role)
        argv += ["--kv-transfer-config", told]
    return (*argv, *worker.args)


def _standin_argv(worker: Worker, placement: Placement, sim_folder: Path) -> tuple[str, ...]:
    argv = [sys.executable, "-m", "disagg_cluster.demo.standin", "--name", worker.name]
    argv += ["--role", worker.role.value, "--port", str(worker.port), "--model", worker.model_name]
    simulated = [device.index for device in placement.devices if not device.is_pseudo]
    argv += ["--gpus", ",".join(map(str, simulated))]
    return (*argv, "--sim-dir", str(sim_folder), *worker.args)


def _kv_transfer_json(kv_transfer: KvTransfer, role: Role) -> str:
    told: dict[str, object] = {
        "kv_connector": kv_transfer.connector,
        "kv_role": kv_transfer.role or _KV_ROLE_OF.get(role, "kv_both"),
    }
    if kv_transfer.buffer_device is not None:
        told["kv_buffer_device"] = kv_transfer.buffer_device
    if kv_transfer.extra_config:
        told["kv_connector_extra_config"] = kv_transfer.extra_config
    return json.dumps(told, separators=(",", ":"))


def _visible(device: Device) -> str:
    # CUDA numbers GPUs, not their MIG instances.
    return device.gpu if device.gpu.startswith("MIG-") else str(device.index)


def _joined(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first


def _with_our_plugin(plugins: str) -> str:
    names = [name for name in plugins.split(",") if name]
    return ",".join(names if PLUGIN_NAME in names else [*names, PLUGIN_NAME])
