"""Finds the process of ours on a GPU that the node file has since given to another worker."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.ownership import adoption
from disagg_cluster.supervisor.worker_spec import WorkerSnapshot, WorkerSpec


def device_holder(
    spec: WorkerSpec, workers: Iterable[WorkerSnapshot], strays: Iterable[Entry]
) -> str:
    """Return who runs on a GPU of a worker that is about to start, and the way out; else empty.

    Two engines on one GPU would take each other's memory, and the one that serves might end.

    Args:
        spec: The worker's.
        workers: All workers; an adopted process may run on other GPUs than its next start will.
        strays: What an earlier node file named.
    """
    for other in workers:
        ours = set(other.tag.gpus) - set(other.spec.gpus)
        held = sorted(ours.intersection(spec.gpus))
        if held and other.pid is not None and other.spec.name != spec.name:
            name = other.spec.name
            return f"{name} still runs on {held[0]}: disagg-node restart {name} moves it to its own"
    for stray in strays:
        held = sorted(set(stray.tag.gpus).intersection(spec.gpus))
        if held and adoption.is_there(stray):
            return (
                f"{stray.worker} still runs on {held[0]}, though the node file no longer names it: "
                f"end pid {stray.pid}"
            )
    return ""
