"""Two books of one model: what its split came to, and what another would have come to.

While we advise, the other one follows each advice; while we act, it is never moved. Both are told
from the load that came, by the same capacities as plans, moves included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

_OTHER_SECONDS = 900.0
"""An engine that is away for less is being moved, or starts again."""


@dataclass(frozen=True, slots=True, eq=False)
class CameNeeds:
    """What both pools needed of the load that came: blocks since `start_seconds`, one path."""

    needs: SplitNeeds
    start_seconds: float

    @property
    def end_seconds(self) -> float:
        """When the last block ended."""
        return self.start_seconds + self.needs.blocks * self.needs.block_seconds


@dataclass(frozen=True, slots=True)
class ShadowBooks:
    """Both books up to `settled_seconds`, since `since_seconds`.

    `actual` is the split at the last look. `shadow` is what the other one is or, from
    `moved_at_seconds` on, becomes; until then it serves as `meanwhile`. Since `other_since` there
    are more or fewer engines than it has. `over_target_seconds` had too few of some role.
    """

    actual: RoleSplit
    shadow: RoleSplit
    since_seconds: float
    settled_seconds: float
    meanwhile: RoleSplit | None = None
    moved_at_seconds: float = 0.0
    other_since: float | None = None
    log: MoveLog = field(default_factory=MoveLog)
    moves: int = 0
    over_target_seconds: float = 0.0
    shadow_over_target_seconds: float = 0.0

    @property
    def gained_seconds(self) -> float:
        """By how much the other one was longer within its targets; below 0 where it was shorter."""
        return self.over_target_seconds - self.shadow_over_target_seconds

    def settled(self, came: CameNeeds) -> ShadowBooks:
        """With the load that came since."""
        actual = shadow = 0.0
        lasts = came.needs.block_seconds
        over_now = came.needs.over_target(self.actual)
        over_then = came.needs.over_target(self.shadow)
        between = self.shadow if self.meanwhile is None else self.meanwhile
        over_between = came.needs.over_target(between)
        for block in range(came.needs.blocks):
            begins = came.start_seconds + block * lasts
            # So much of the block its engine was still on its way.
            waits = min(lasts, max(0.0, self.moved_at_seconds - begins))
            actual += lasts * over_now[block]
            shadow += waits * over_between[block] + (lasts - waits) * over_then[block]
        return replace(
            self,
            settled_seconds=came.end_seconds,
            over_target_seconds=self.over_target_seconds + actual,
            shadow_over_target_seconds=self.shadow_over_target_seconds + shadow,
        )

    def looked_at(
        self,
        actual: RoleSplit,
        decided: Callable[[RoleSplit, MoveLog], Move | Stay],
        cost: MoveCost,
        now_seconds: float,
    ) -> ShadowBooks:
        """With the split that there is now, and the move that the other one begins now.

        Where engines came or went, and stay so, the other one starts again from what there is.
        """
        books = replace(self, actual=actual)
        if actual.engines != self.shadow.engines:
            other_since = now_seconds if self.other_since is None else self.other_since
            if now_seconds - other_since < _OTHER_SECONDS:
                return replace(books, other_since=other_since)
            return replace(books, shadow=actual, meanwhile=None, log=MoveLog(), other_since=None)
        books = replace(books, other_since=None)
        if books.log.under_way and now_seconds >= books.moved_at_seconds:
            books = replace(books, meanwhile=None, log=books.log.ended(books.moved_at_seconds))
        said = decided(books.shadow, books.log)
        if isinstance(said, Stay):
            return books
        step = 1 if said.to_role is Role.DECODE else -1
        return replace(
            books,
            shadow=books.shadow.moved(step),
            meanwhile=books.shadow.without(step),
            moved_at_seconds=now_seconds + cost.downtime_seconds,
            log=books.log.begun(now_seconds, said.to_role, undoes=said.undoes),
            moves=books.moves + 1,
        )
