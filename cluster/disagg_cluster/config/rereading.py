"""What a node file says otherwise than before, and how much of it a running daemon takes in.

Pure. A daemon takes in how a worker is started (`TAKEN`): from its next start on. Everything else,
other workers above all, waits for the next daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.config.masking import masked_arguments
from disagg_cluster.config.node import NodeConfig
from disagg_cluster.config.worker import Worker

TAKEN = ("python", "args", "role_args", "env", "deadlines", "health", "restart", "limits")
"""The keys of a worker that may change under a running daemon."""


@dataclass(frozen=True, slots=True)
class RereadFile:
    """What is otherwise: `workers` are taken in, and why, and what `waits` for the next daemon."""

    workers: tuple[Worker, ...]
    taken: tuple[str, ...]
    waits: tuple[str, ...]


def reread(before: NodeConfig, after: NodeConfig) -> RereadFile:
    """Compare what a daemon runs on with what its file says now."""
    old = {worker.name: worker for worker in before.workers}
    new = {worker.name: worker for worker in after.workers}
    workers: list[Worker] = []
    taken: list[str] = []
    waits = [f"{name}: is new in the file" for name in new.keys() - old.keys()]
    waits += [f"{name}: is no longer in the file" for name in old.keys() - new.keys()]
    for name in (name for name in old if name in new):
        keys = _different(old[name], new[name])
        if mine := [key for key in keys if key in TAKEN]:
            values = {key: getattr(new[name], key) for key in mine}
            workers.append(old[name].model_copy(update=values))
            taken += [f"{name}: {text}" for key in mine for text in _told(key, old, new, name)]
        if others := [key for key in keys if key not in TAKEN]:
            waits.append(f"{name}: {', '.join(others)}")
    fields = type(before).model_fields
    waits += [
        f"{key}"
        for key in fields
        if key != "workers" and getattr(before, key) != getattr(after, key)
    ]
    return RereadFile(tuple(workers), tuple(taken), tuple(sorted(waits)))


def _different(old: Worker, new: Worker) -> list[str]:
    return [key for key in type(old).model_fields if getattr(old, key) != getattr(new, key)]


def _told(key: str, old: dict[str, Worker], new: dict[str, Worker], name: str) -> Iterator[str]:
    before, after = getattr(old[name], key), getattr(new[name], key)
    match key:
        case "args":
            shown = (" ".join(masked_arguments(args)) or "none" for args in (before, after))
            yield "args: {} → {}".format(*shown)
        case "env":
            # Their values may be secrets.
            names = sorted({k for k in {*before, *after} if before.get(k) != after.get(k)})
            yield f"env: {', '.join(names)}"
        case "python":
            yield f"python: {before} → {after}"
        case _:
            yield key
