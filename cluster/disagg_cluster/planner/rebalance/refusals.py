"""Workers that refused, or failed, to move; for an hour others are asked instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker, WorkerId


@dataclass(frozen=True, slots=True)
class Refusals:
    """When each worker whose last move was refused or failed was asked for it; of the last hour."""

    at_seconds: Mapping[WorkerId, float] = field(default_factory=dict)

    def answered(self, worker: PoolWorker, now_seconds: float, *, refused: bool) -> Refusals:
        """Replace the answer of a worker, and drop refusals that are older than an hour."""
        kept = dict(self.until(now_seconds).at_seconds)
        kept.pop(worker.id, None)
        return Refusals({**kept, worker.id: now_seconds} if refused else kept)

    def until(self, now_seconds: float) -> Refusals:
        """Those of the last hour; later ones, as the clock was set back, are dropped as well."""
        return Refusals({each: self.at_seconds[each] for each in self.left_out(now_seconds)})

    def left_out(self, now_seconds: float) -> frozenset[WorkerId]:
        """Workers not to ask now; refusals after now, as the clock was set back, do not count."""
        return frozenset(
            each for each, at in self.at_seconds.items() if 0 <= now_seconds - at < HOUR_SECONDS
        )
