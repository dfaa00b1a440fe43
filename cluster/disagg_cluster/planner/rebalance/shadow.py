"""Time over target of a model's actual split, and of a shadow split for comparison.

In mode advise the shadow follows each advice; in mode act it never moves. Both are computed from
the observed load with the capacities that plans use, including the downtime of moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

_MISMATCH_SECONDS = 900.0
"""Engine counts that differ for less are ignored: an engine moves or restarts."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedNeeds:
    """Needs of both pools for the observed load: one path of blocks since `start_seconds`."""

    needs: SplitNeeds
    start_seconds: float

    @property
    def end_seconds(self) -> float:
        """When the last block ended."""
        return self.start_seconds + self.needs.blocks * self.needs.block_seconds


@dataclass(frozen=True, slots=True)
class ShadowAccounting:
    """Time over target of both splits, from `since_seconds` to `accounted_seconds`.

    `actual` is the split at the last update. `shadow` is the shadow split, effective from
    `moved_at_seconds` on; until then it serves as `meanwhile`. Since `mismatch_since` the number of
    actual engines differs from the shadow's. `over_target_seconds` is time with too few engines of
    some role.
    """

    actual: RoleSplit
    shadow: RoleSplit
    since_seconds: float
    accounted_seconds: float
    meanwhile: RoleSplit | None = None
    moved_at_seconds: float = 0.0
    mismatch_since: float | None = None
    log: MoveLog = field(default_factory=MoveLog)
    moves: int = 0
    over_target_seconds: float = 0.0
    shadow_over_target_seconds: float = 0.0

    @property
    def gained_seconds(self) -> float:
        """How much longer the shadow was within its targets; negative if shorter."""
        return self.over_target_seconds - self.shadow_over_target_seconds

    def until(self, now_seconds: float, end_seconds: float) -> ShadowAccounting:
        """The accounting without times to come: the clock was set back.

        A move of the shadow that began at one is over. Load counts from the end of the history on.

        Args:
            now_seconds: Unix time.
            end_seconds: The end of the load's history.
        """
        begun, mismatch = self.log.begun_seconds, self.mismatch_since
        return replace(
            self,
            since_seconds=min(self.since_seconds, now_seconds),
            accounted_seconds=min(self.accounted_seconds, end_seconds),
            moved_at_seconds=now_seconds
            if begun and begun[-1] > now_seconds
            else self.moved_at_seconds,
            mismatch_since=None if mismatch is None else min(mismatch, now_seconds),
            log=self.log.until(now_seconds),
        )

    def with_load(self, observed: ObservedNeeds) -> ShadowAccounting:
        """Add the load observed since."""
        actual = shadow = 0.0
        lasts = observed.needs.block_seconds
        over_now = observed.needs.over_target(self.actual)
        over_then = observed.needs.over_target(self.shadow)
        between = self.shadow if self.meanwhile is None else self.meanwhile
        over_between = observed.needs.over_target(between)
        for block in range(observed.needs.blocks):
            begins = observed.start_seconds + block * lasts
            # Part of the block in which the shadow's engine was still moving.
            waits = min(lasts, max(0.0, self.moved_at_seconds - begins))
            actual += lasts * over_now[block]
            shadow += waits * over_between[block] + (lasts - waits) * over_then[block]
        return replace(
            self,
            accounted_seconds=observed.end_seconds,
            over_target_seconds=self.over_target_seconds + actual,
            shadow_over_target_seconds=self.shadow_over_target_seconds + shadow,
        )

    def updated(
        self,
        actual: RoleSplit,
        decide: Callable[[RoleSplit, MoveLog], Move | Stay],
        cost: MoveCost,
        now_seconds: float,
    ) -> ShadowAccounting:
        """Record the present split, and begin the move that the shadow makes now.

        If the number of engines changes permanently, the shadow restarts from the present split.
        """
        accounting = replace(self, actual=actual)
        if actual.engines != self.shadow.engines:
            mismatch_since = now_seconds if self.mismatch_since is None else self.mismatch_since
            if now_seconds - mismatch_since < _MISMATCH_SECONDS:
                return replace(accounting, mismatch_since=mismatch_since)
            return replace(
                accounting, shadow=actual, meanwhile=None, log=MoveLog(), mismatch_since=None
            )
        accounting = replace(accounting, mismatch_since=None)
        if accounting.log.under_way and now_seconds >= accounting.moved_at_seconds:
            accounting = replace(
                accounting, meanwhile=None, log=accounting.log.ended(accounting.moved_at_seconds)
            )
        advice = decide(accounting.shadow, accounting.log)
        if isinstance(advice, Stay):
            return accounting
        step = 1 if advice.to_role is Role.DECODE else -1
        return replace(
            accounting,
            shadow=accounting.shadow.moved(step),
            meanwhile=accounting.shadow.without(step),
            moved_at_seconds=now_seconds + cost.downtime_seconds,
            log=accounting.log.begun(now_seconds, advice.to_role, undoes=advice.undoes),
            moves=accounting.moves + 1,
        )
