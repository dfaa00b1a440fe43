"""Finds the processes of ours on GPUs and ports that the node file has not given to them."""

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
    """Return who has the port or a GPU of a worker about to start, and the way out; else empty.

    Two engines on one GPU would take each other's memory, and the one that serves might end.

    Args:
        spec: The worker's.
        workers: All workers; an adopted process may run on other GPUs, or listen on another port,
            than its next start will.
        strays: What an earlier node file named.
    """
    for other in workers:
        its = other.spec.tag
        left = other.tag.port if other.tag.port != its.port else 0
        place = _shared(spec, set(other.tag.gpus) - set(its.gpus), left)
        if place and other.pid is not None and other.spec.name != spec.name:
            name = other.spec.name
            return f"{name} still runs on {place}: disagg-node restart {name} moves it to its own"
    for stray in strays:
        place = _shared(spec, stray.tag.gpus, stray.tag.port)
        if place and adoption.is_there(stray):
            return (
                f"{stray.worker} still runs on {place}, though the node file no longer names it: "
                f"end pid {stray.pid}"
            )
    return ""


def _shared(spec: WorkerSpec, gpus: Iterable[str], port: int) -> str:
    """Return which of a worker's GPUs, else its port, is among these; empty if neither is."""
    held = sorted(set(gpus).intersection(spec.gpus))
    if held:
        return held[0]
    return f"port {port}" if port and port == spec.target.port else ""
