"""The command and environment of a worker's process, and how many devices its model needs.

For vLLM and stand-ins; `sglang_command` has those of SGLang.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from disagg_cluster.config import KvTransfer, Worker
from disagg_cluster.config.layout import Placement
from disagg_cluster.launch import sglang_command
from disagg_cluster.launch.sglang_command import sglang_argv, sglang_variables
from disagg_cluster.lifecycle.state import LaunchCommand
from disagg_exporter.model import Device, Role

STANDIN = "disagg_cluster.demo.standin"
"""The module of stand-in engines."""
_PLUGIN_NAME = "disagg_steps"
"""The entry point by which an engine finds our plugin (also in `VLLM_PLUGINS`)."""

_MEASURED = "the node counts an engine's GPU-seconds from what it reports of its steps"

_VLLM_ARGUMENTS: Mapping[str, str] = {
    "--model": "say it with the key model",
    "--served-model-name": "say it with the key served_model_name",
    "--host": "say it with the key host",
    "--port": "say it with the key port",
    "--tensor-parallel-size": "say it with the key tensor_parallel_size",
    "-tp": "say it with the key tensor_parallel_size",
    "--kv-transfer-config": "say it with the key kv_transfer",
    "--enable-logging-iteration-details": "it is always given",
    "--no-enable-logging-iteration-details": _MEASURED,
    "--disable-log-stats": _MEASURED,
    "--headless": "a worker has a server; a follower is started by hand, and attached to",
}
_VLLM_VARIABLES: Mapping[str, str] = {
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": "say it with the key kv_transfer.side_channel_port",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "say it with the key kv_transfer.side_channel_port",
}
_VLLM_SIZES: Mapping[str, str] = {
    "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline",
    "--data-parallel-size": "data",
    "-dp": "data",
}
_KV_ROLE_OF = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}

OWN_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "vllm": _VLLM_ARGUMENTS,
    "sglang": sglang_command.OWN_ARGUMENTS,
    "standin": {},
}
"""Arguments that a node file may not give to an engine of a kind, with the reason."""

_OF_ALL: Mapping[str, str] = {
    "CUDA_DEVICE_ORDER": "GPUs are numbered in the order of the PCI bus",
    "CUDA_VISIBLE_DEVICES": "say it with the key gpus",
    "DISAGG_STEPS_SOCKET": _MEASURED,
}
OWN_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "vllm": {**_OF_ALL, **_VLLM_VARIABLES},
    "sglang": {**_OF_ALL, **sglang_command.OWN_VARIABLES},
    "standin": _OF_ALL,
}
"""Variables that a node file may not set for an engine of a kind, with the reason."""

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
OTHER_SIZES: Mapping[str, Mapping[str, str]] = {
    "vllm": _VLLM_SIZES,
    "sglang": sglang_command.OTHER_SIZES,
}
"""Arguments that multiply the GPUs an engine of a kind needs, and the kind of parallelism."""

_DATA_SIZES = ("--data-parallel-size", "-dp")
_OF_RANKS = ("--data-parallel", "-dp", "--device-ids")


def build(
    worker: Worker,
    placement: Placement,
    *,
    steps_socket: Path,
    engine_side_folder: Path,
    sim_folder: Path | None = None,
) -> LaunchCommand:
    """Return the command that starts a worker's engine.

    Args:
        worker: The worker's section of the node file.
        placement: Its devices.
        steps_socket: Where the daemon listens for the records of this worker's steps.
        engine_side_folder: The folder that holds nothing but our plugin.
        sim_folder: Where stand-ins write their devices' activity; by default `sim` beside the
            socket.
    """
    environment = {**worker.env, **_pinned(placement)}
    if worker.engine == "sglang":
        environment |= sglang_variables(worker)
        return LaunchCommand(sglang_argv(worker), environment)
    environment["PYTHONPATH"] = _joined(str(engine_side_folder), worker.env.get("PYTHONPATH"))
    environment["DISAGG_STEPS_SOCKET"] = str(steps_socket)
    if worker.engine == "standin":
        folder = sim_folder or steps_socket.parent / "sim"
        return LaunchCommand(_standin_argv(worker, placement, folder), environment)
    environment |= _vllm_variables(worker)
    return LaunchCommand(vllm_argv(worker), environment)


def child_environment(base: Mapping[str, str], command: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a child: what it inherits, and what its command adds.

    The service manager's private channels and our own variables are not inherited. A search path
    that the daemon was started with stays, after the child's own.

    Args:
        base: The daemon's environment.
        command: `LaunchCommand.env`.
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


def _pinned(placement: Placement) -> dict[str, str]:
    """Return the variables that restrict an engine to its GPUs."""
    if not placement.on_gpus:
        return {}
    visible = ",".join(map(_visible, placement.devices))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}


def vllm_argv(worker: Worker) -> tuple[str, ...]:
    """Return the program and arguments of a vLLM engine."""
    argv = [worker.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", worker.model, "--served-model-name", worker.model_name]
    argv += ["--host", worker.host, "--port", str(worker.port)]
    argv += ["--tensor-parallel-size", str(worker.tp_size)]
    argv += ["--enable-logging-iteration-details"]
    if worker.kv_transfer is not None:
        argv += ["--kv-transfer-config", _kv_transfer_json(worker.kv_transfer, worker.role)]
    return (*argv, *worker.arguments)


def _vllm_variables(worker: Worker) -> dict[str, str]:
    """Return a vLLM engine's variables besides the worker's own; some of those take precedence."""
    variables: dict[str, str] = {}
    ports = worker.side_channel_ports
    if ports and worker.uses_bootstrap:
        variables["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(ports.start)
    elif ports:
        # Peers use it unchanged: if the engine listens on all addresses, the file must name the one
        # by which they reach it.
        host = worker.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", worker.probe_host)
        variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host
        variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(ports.start)
    if "VLLM_PLUGINS" in worker.env:
        variables["VLLM_PLUGINS"] = _with_our_plugin(worker.env["VLLM_PLUGINS"])
    return variables


def _with_our_plugin(plugins: str) -> str:
    """Return a value of `VLLM_PLUGINS` that loads our plugin, too."""
    names = [name for name in plugins.split(",") if name]
    return ",".join(names if _PLUGIN_NAME in names else [*names, _PLUGIN_NAME])


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


def _standin_argv(worker: Worker, placement: Placement, sim_folder: Path) -> tuple[str, ...]:
    argv = [sys.executable, "-m", STANDIN, "--name", worker.name]
    argv += ["--role", worker.role.value, "--model", worker.model_name]
    argv += ["--host", worker.host, "--port", str(worker.port)]
    simulated = [device.index for device in placement.devices if not device.is_pseudo]
    argv += ["--gpus", ",".join(map(str, simulated))]
    return (*argv, "--sim-dir", str(sim_folder), *worker.arguments)


def _visible(device: Device) -> str:
    # CUDA numbers GPUs, not their MIG instances.
    return device.gpu if device.gpu.startswith("MIG-") else str(device.index)


def _joined(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first


def other_sizes(worker: Worker) -> dict[str, int]:
    """Return the factors, besides tensor parallelism, by which its arguments multiply its GPUs."""
    known, args = OTHER_SIZES.get(worker.engine, {}), worker.arguments
    sizes: dict[str, int] = {}
    for argument, following in zip(args, (*args[1:], ""), strict=False):
        kind = known.get(option_name(argument))
        value = argument.partition("=")[2] or following
        if kind and value.isdecimal() and int(value) > 1:
            sizes[kind] = int(value)
    if worker.engine == "sglang" and sglang_command.DATA_WITHIN_TENSOR in map(option_name, args):
        sizes.pop("data", None)
    return sizes


def option_name(argument: str) -> str:
    """Return the name of an option in any spelling that vLLM accepts: `--a_b=1`, `--a-b.c`."""
    if not argument.startswith("-"):
        return ""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")


def ranks_of(worker: Worker) -> int:
    """Return how many data-parallel ranks divide a worker's devices among them; 1 if unknown.

    vLLM gives each rank its part of the devices, in order (`get_device_indices` of version 0.32).
    If the arguments state more about the ranks than their number, some may be elsewhere.
    """
    names = [option_name(argument) for argument in worker.arguments]
    more = [name for name in names if name.startswith(_OF_RANKS) and name not in _DATA_SIZES]
    return 1 if worker.engine != "vllm" or more else other_sizes(worker).get("data", 1)
