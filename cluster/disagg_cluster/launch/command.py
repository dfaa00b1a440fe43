"""What a worker's process is started with, and over how many devices that spreads its model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from disagg_cluster.config import Worker
from disagg_cluster.config.layout import Placement
from disagg_cluster.launch import sglang_command, vllm_command
from disagg_cluster.launch.sglang_command import sglang_argv, sglang_variables
from disagg_cluster.launch.vllm_command import MEASURED, vllm_argv, vllm_variables, with_our_plugin
from disagg_cluster.lifecycle.state import LaunchCommand
from disagg_exporter.model import Device

OWN_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "vllm": vllm_command.OWN_ARGUMENTS,
    "sglang": sglang_command.OWN_ARGUMENTS,
    "standin": {},
}
"""Arguments that a node file may not give to an engine of a kind, with the reason."""

_OF_ALL: Mapping[str, str] = {
    "CUDA_DEVICE_ORDER": "GPUs are numbered in the order of the PCI bus",
    "CUDA_VISIBLE_DEVICES": "say it with the key gpus",
    "DISAGG_STEPS_SOCKET": MEASURED,
}
OWN_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "vllm": {**_OF_ALL, **vllm_command.OWN_VARIABLES},
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
    "vllm": vllm_command.OTHER_SIZES,
    "sglang": sglang_command.OTHER_SIZES,
}
"""Arguments that multiply the GPUs an engine of a kind needs, by what."""

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
    """How to start a worker's engine.

    Args:
        worker: What the node file says of it.
        placement: Its devices.
        steps_socket: Where the daemon listens for the records of this worker's steps.
        engine_side_folder: The folder that holds nothing but our plugin.
        sim_folder: Where stand-ins write what their devices do; by default `sim` beside the
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
    environment |= vllm_variables(worker)
    return LaunchCommand(vllm_argv(worker), environment)


def child_environment(base: Mapping[str, str], command: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a child: what it inherits, then what its command adds.

    Not inherited are the service manager's private channels and everything of our own. A search
    path that the daemon itself was started with stays, behind the child's own.

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
        child["VLLM_PLUGINS"] = with_our_plugin(child["VLLM_PLUGINS"])
    return child


def _pinned(placement: Placement) -> dict[str, str]:
    """What confines an engine to its GPUs."""
    if not placement.on_gpus:
        return {}
    visible = ",".join(map(_visible, placement.devices))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}


def _standin_argv(worker: Worker, placement: Placement, sim_folder: Path) -> tuple[str, ...]:
    argv = [sys.executable, "-m", "disagg_cluster.demo.standin", "--name", worker.name]
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
    """Return by what its arguments multiply the GPUs it needs, beside the size of a tensor."""
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
    """The name of an option however vLLM lets it be written: `--a_b=1`, `--a-b.c`."""
    if not argument.startswith("-"):
        return ""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")


def ranks_of(worker: Worker) -> int:
    """Return how many data-parallel ranks divide a worker's devices among them; 1 if unknown.

    vLLM gives each rank its part of the devices, in order (`get_device_indices` of version 0.32).
    Whoever says more of its ranks than their number may have others elsewhere.
    """
    names = [option_name(argument) for argument in worker.arguments]
    more = [name for name in names if name.startswith(_OF_RANKS) and name not in _DATA_SIZES]
    return 1 if worker.engine != "vllm" or more else other_sizes(worker).get("data", 1)
