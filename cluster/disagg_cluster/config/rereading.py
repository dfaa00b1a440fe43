"""What has changed in a node file, and how much of it a running daemon adopts.

Pure. A daemon adopts how a worker is started (`TAKEN`), from its next start on; it starts new
workers and ends removed ones, unless a router of fixed engines stands in front of them. Everything
else waits for the next daemon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from disagg_cluster.config.masking import masked_arguments
from disagg_cluster.config.node import NodeConfig
from disagg_cluster.config.values import Section
from disagg_cluster.config.worker import Worker
from disagg_exporter.model.counted import counted

TAKEN = ("python", "args", "role_args", "env", "deadlines", "health", "restart", "limits")
"""The keys of a worker that may change under a running daemon."""

_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class RereadFile:
    """The changes: those `taken` in, of `workers` that stay, and what `waits` for the next daemon.

    `added` are the workers to be started, `removed` the names of those to be ended; `come` and
    `gone` describe these in words.
    """

    workers: tuple[Worker, ...]
    taken: tuple[str, ...]
    waits: tuple[str, ...]
    added: tuple[Worker, ...] = ()
    removed: tuple[str, ...] = ()
    come: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


def reread(before: NodeConfig, after: NodeConfig) -> RereadFile:
    """Compare the configuration that a daemon runs on with its file's present one."""
    old = {worker.name: worker for worker in before.workers}
    new = {worker.name: worker for worker in after.workers}
    workers: list[Worker] = []
    added = [worker for name, worker in new.items() if name not in old]
    removed = [name for name in old if name not in new]
    come = [f"{worker.name}: is new in the file: {_as_what(worker)}" for worker in added]
    gone = [f"{name}: is no longer in the file" for name in removed]
    taken: list[str] = []
    waits: list[str] = []
    if before.router is not None and before.router.membership != "live":
        # A router with fixed engines would send a new one nothing, and still send to one that ends.
        waits = [f"{each}, and the router's engines are fixed" for each in come + gone]
        added, removed, come, gone = [], [], [], []
    for name in (name for name in old if name in new):
        keys = _different(old[name], new[name])
        if mine := [key for key in keys if key in TAKEN]:
            values = {key: getattr(new[name], key) for key in mine}
            workers.append(old[name].model_copy(update=values))
            taken += [f"{name}: {text}" for key in mine for text in _told(key, old, new, name)]
        if others := [key for key in keys if key not in TAKEN]:
            paths = (path for key in others for path in _paths(key, old[name], new[name]))
            waits.append(f"{name}: {', '.join(paths)}")
    beside = (key for key in _different(before, after) if key != "workers")
    waits += [path for key in beside for path in _paths(key, before, after)]
    return RereadFile(
        tuple(workers),
        tuple(taken),
        tuple(sorted(waits)),
        tuple(added),
        tuple(removed),
        tuple(come),
        tuple(gone),
    )


def _as_what(worker: Worker) -> str:
    gpus = worker.gpus
    if not gpus:
        return f"{worker.role}"
    if isinstance(gpus, int):
        return f"{worker.role} on {counted(gpus, 'GPU')}"
    return f"{worker.role} on GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"


def _different(old: Section, new: Section) -> list[str]:
    return [key for key in type(old).model_fields if getattr(old, key) != getattr(new, key)]


def _paths(key: str, before: Section, after: Section) -> Iterator[str]:
    """Yield the changed keys below a key, as a person would look for them: `listen.metrics`."""
    old, new = getattr(before, key), getattr(after, key)
    if isinstance(old, Section) and type(old) is type(new):
        for inner in _different(old, new):
            yield from (f"{key}.{path}" for path in _paths(inner, old, new))
    else:
        yield key


def _told(key: str, old: dict[str, Worker], new: dict[str, Worker], name: str) -> Iterator[str]:
    before, after = getattr(old[name], key), getattr(new[name], key)
    match key:
        case "args":
            yield f"args: {_changed(masked_arguments(before), masked_arguments(after))}"
        case "env":
            # Their values may be secrets.
            names = sorted({k for k in {*before, *after} if before.get(k) != after.get(k)})
            yield f"env: {', '.join(names)}"
        case "python":
            yield f"python: {before} → {after}"
        case _:
            yield key


def _changed(before: Sequence[str], after: Sequence[str]) -> str:
    """Return how two argument lists differ; of long ones without their common beginning and end."""
    first = last = 0
    if len(" ".join((*before, *after))) > _MOST_SHOWN:
        least = min(len(before), len(after))
        first = next((at for at in range(least) if before[at] != after[at]), least)
        # Include the preceding argument, which names the option of a value.
        first = max(first - 1, 0)
        ends = zip(reversed(before[first:]), reversed(after[first:]), strict=False)
        last = len(list(takewhile(lambda pair: pair[0] == pair[1], ends)))
    shown = (" ".join(args[first : len(args) - last]) or "none" for args in (before, after))
    text = " → ".join(shown)
    return f"{'… ' if first else ''}{text}{' …' if last else ''}"
