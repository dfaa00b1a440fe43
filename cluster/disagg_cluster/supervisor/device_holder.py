"""Finds the processes of ours on GPUs that the node file has not given to them, or no more."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.ownership import adoption
from disagg_cluster.supervisor.worker_spec import WorkerSnapshot, WorkerSpec


def gpus_held(workers: Iterable[WorkerSnapshot], strays: Iterable[Entry]) -> dict[str, str]:
    """Return, by GPU, the worker whose process runs there; parameters as for `device_holder`."""
    left = {gpu: each.worker for each in strays if adoption.is_there(each) for gpu in each.tag.gpus}
    running = (one for one in workers if one.pid is not None)
    return left | {gpu: one.spec.name for one in running for gpu in one.tag.gpus}


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
