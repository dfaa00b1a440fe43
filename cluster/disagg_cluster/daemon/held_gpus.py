"""Finds the GPUs that engines of an earlier daemon run on, before a daemon assigns its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from disagg_cluster.daemon.stop import left_behind
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.supervisor.ownership.run_folders import Unrecorded, unrecorded
from disagg_exporter.model import Device


def gpus_held(folder: RunFolder, devices: Sequence[Device]) -> dict[str, str]:
    """By GPU, the worker that is still running there without a daemon.

    Of one that no journal names, its own start tells: if its place in the node file did, it would
    be taken to run on other GPUs than it does, and a second engine be started on those.

    Args:
        folder: The run folder, there or not.
        devices: The node's devices.
    """
    recorded = left_behind(folder)
    held = {gpu: entry.worker for entry in recorded for gpu in entry.tag.gpus}
    for found in unrecorded(folder, [entry.pid for entry in recorded]):
        for gpu in _started_with(found, devices) if found.proven else ():
            held.setdefault(gpu, found.worker)
    return held


def _started_with(found: Unrecorded, devices: Sequence[Device]) -> tuple[str, ...]:
    # Imported only where there is such a process: most starts do without.
    from disagg_cluster.discovery.finders.processes import visible_gpus
    from disagg_cluster.host.processes.process_table import environment
    from disagg_cluster.launch.command import STANDIN

    name = "CUDA_VISIBLE_DEVICES"
    text = environment(found.pid, (name,)).get(name)
    if STANDIN in found.argv:
        # Simulated GPUs are no CUDA devices.
        text = next((value for option, value in pairwise(found.argv) if option == "--gpus"), text)
    return visible_gpus(text, devices, contained=False)
