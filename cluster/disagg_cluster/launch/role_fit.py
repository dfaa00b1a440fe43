"""Why a worker cannot have another role, as far as its node file shows."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.launch.worker_specs import in_role
from disagg_cluster.lifecycle.reassignment.progress import ROLES
from disagg_exporter.model import Role


def misfits(config: NodeConfig, worker: Worker, role: Role) -> tuple[str, ...]:
    """Return the reasons against a worker in `role`; none if it fits."""
    return tuple(_against(config, in_role(worker, role)))


def all_misfits(config: NodeConfig) -> dict[tuple[str, Role], tuple[str, ...]]:
    """Return the reasons against each worker in each role that can be assigned, where there are."""
    return {
        (worker.name, role): found
        for worker in config.workers
        for role in ROLES
        if (found := misfits(config, worker, role))
    }


def _against(config: NodeConfig, moved: Worker) -> Iterator[str]:
    others = [worker for worker in config.workers if worker.name != moved.name]
    if moved.engine == "standin":
        return
    if moved.kv_transfer is None:
        yield "it has no kv_transfer to hand KV over by"
    for other in others:
        if other.role in (moved.role, Role.MIXED, Role.ENCODE):
            continue
        if other.model_name == moved.model_name and not _divides(moved.tp_size, other.tp_size):
            yield (
                f"its tensor parallel size {moved.tp_size} does not fit {other.tp_size} of "
                f"{other.name}: one has to divide the other"
            )
    ports = set(moved.side_channel_ports)
    for other in others:
        if taken := ports & {*other.side_channel_ports, other.port}:
            yield f"{other.name} has the port {min(taken)} that its KV transfer would listen on"


def _divides(one: int, other: int) -> bool:
    return max(one, other) % min(one, other) == 0
