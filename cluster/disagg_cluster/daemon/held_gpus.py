"""Engines that an earlier daemon left, and their GPUs: by its journal or by their own start."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from disagg_cluster.daemon.stop import left_behind
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.lifecycle.state import Lifecycle
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.ownership import adoption
from disagg_cluster.supervisor.ownership.run_folders import entry_of, stated_port, unrecorded
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.model import Device

_log = logging.getLogger("disagg_node")


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
        for gpu in _started_on(found.pid, found.argv, devices) if found.proven else ():
            held.setdefault(gpu, found.worker)
    return held


def with_unrecorded(
    entries: Sequence[Entry],
    specs: Iterable[WorkerSpec],
    folder: RunFolder,
    devices: Sequence[Device],
) -> tuple[Entry, ...]:
    """The journal's entries, and one for each engine of ours that runs and has none.

    Such an engine is where its own start says: the node file may say otherwise by now, or not name
    it any more. One that cannot be told from a person's process is only reported.

    Args:
        entries: The journal's.
        specs: The workers of the node file, the router included.
        folder: The run folder.
        devices: The node's devices.
    """
    by_name = {spec.name: spec for spec in specs}
    return (*entries, *_unrecorded_entries(entries, by_name, folder, devices))


def _unrecorded_entries(
    entries: Iterable[Entry],
    specs: Mapping[str, WorkerSpec],
    folder: RunFolder,
    devices: Sequence[Device],
) -> Iterator[Entry]:
    pids = {entry.worker: entry.pid for entry in entries}
    ports = {name: spec.target.port for name, spec in specs.items()}
    for found in unrecorded(folder, pids.values(), ports):
        spec = specs.get(found.worker)
        if found.worker in pids:
            continue
        if spec is not None:
            yield from _entry_of_worker(spec, devices)
        elif found.proven:
            entry = entry_of(found, folder)
            yield _on(entry, _started_on(found.pid, found.argv, devices), entry.tag.port)
        else:
            _log.warning(
                "pid %s writes the log of %s, which is neither in the journal nor in the node "
                "file; it is left alone, and may hold GPUs",
                found.pid,
                found.worker,
            )


def _entry_of_worker(spec: WorkerSpec, devices: Sequence[Device]) -> Iterator[Entry]:
    """Yield an entry for what runs of a worker of the node file, if anything does."""
    child = adoption.find_unrecorded(spec.sought).child
    if child is None:
        return
    child.let_go()
    argv = procfs.command_line(child.pid)
    began_seconds = time.time() - procfs.age_seconds(child.start_ticks)
    entry = spec.entry(child.start_ticks, began_seconds).model_copy(
        update={
            "pid": child.pid,
            "life": adoption.unrecorded_life(Lifecycle(), time.monotonic_ns()),
        }
    )
    gpus = _started_on(child.pid, argv, devices) or spec.gpus
    yield _on(entry, gpus, stated_port(argv) or spec.target.port)


def _on(entry: Entry, gpus: tuple[str, ...], port: int) -> Entry:
    tag = entry.tag.model_copy(update={"gpus": gpus, "port": port})
    return entry.model_copy(update={"tag": tag})


def _started_on(pid: int, argv: Sequence[str], devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the GPUs that a process was started on, as far as it says."""
    # Imported only where there is such a process: most starts do without.
    from disagg_cluster.discovery.finders.processes import visible_gpus
    from disagg_cluster.host.processes.process_table import environment
    from disagg_cluster.launch.command import STANDIN

    name = "CUDA_VISIBLE_DEVICES"
    text = environment(pid, (name,)).get(name)
    if STANDIN in argv:
        # Simulated GPUs are no CUDA devices.
        text = next((value for option, value in pairwise(argv) if option == "--gpus"), text)
    return visible_gpus(text, devices, contained=False)
