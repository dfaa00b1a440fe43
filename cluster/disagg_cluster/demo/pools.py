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
    """Base URLs of the engines that read prompts, and of those that write."""

    prefill: tuple[str, ...]
    decode: tuple[str, ...]

    def or_else(self, usual: PoolUrls) -> PoolUrls:
        """Return these, and the usual ones of a kind that has none: there requests shall fail."""
        return PoolUrls(self.prefill or usual.prefill, self.decode or usual.decode)


def first_pools(config: NodeConfig) -> PoolUrls:
    """Return all engines of a node file, by the role that it gives them."""
    return _pools(config, {worker.name: worker.role for worker in config.workers})


def pools_now(config: NodeConfig, snapshot: Snapshot | None) -> PoolUrls:
    """Return whom a snapshot shows ready, by the role that each has now.

    One that drains, starts or changes its role is in neither; before the first snapshot, None,
    nobody is.
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
