"""Which engines of the demo take requests now: what a router would learn from its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disagg_exporter.model import Role, Snapshot

if TYPE_CHECKING:
    from disagg_cluster.config import NodeConfig


@dataclass(frozen=True, slots=True)
class PoolUrls:
    """Base URLs of the prefill engines and of the decode engines."""

    prefill: tuple[str, ...]
    decode: tuple[str, ...]

    def or_else(self, usual: PoolUrls) -> PoolUrls:
        """Return these, with the usual ones of an empty kind, where requests are meant to fail."""
        return PoolUrls(self.prefill or usual.prefill, self.decode or usual.decode)


def first_pools(config: NodeConfig) -> PoolUrls:
    """Return all engines of a node file, by their role in it."""
    return _pools(config, {worker.name: worker.role for worker in config.workers})


def pools_now(config: NodeConfig, snapshot: Snapshot | None) -> PoolUrls:
    """Return the engines that are ready in a snapshot, by their current roles.

    An engine that drains, starts or changes its role is in neither; before the first snapshot,
    None, both are empty.
    """
    if snapshot is None:
        return PoolUrls((), ())
    ready = {worker.worker for worker in snapshot.workers if worker.state == "ready"}
    roles = {engine.engine: engine.role for engine in snapshot.engines if engine.engine in ready}
    return _pools(config, roles)


def _pools(config: NodeConfig, roles: Mapping[str, Role]) -> PoolUrls:
    prefill, decode = (
        tuple(
            f"http://127.0.0.1:{worker.port}"
            for worker in config.workers
            if roles.get(worker.name) is role
        )
        for role in (Role.PREFILL, Role.DECODE)
    )
    return PoolUrls(prefill, decode)
