"""Recent moves of one model, and whether another one may begin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS, RebalanceLimits
from disagg_exporter.model import Role
from disagg_exporter.model.counted import counted


@dataclass(frozen=True, slots=True)
class NewMove:
    """A move under way to `to_role`; if it `undoes`, it reverts the last one."""

    to_role: Role
    undoes: bool = False


@dataclass(frozen=True, slots=True)
class DoneMove:
    """A move that was made; if it `undid`, it reverted the one before."""

    to_role: Role
    ended_seconds: float
    undid: bool = False


@dataclass(frozen=True, slots=True)
class MoveLog:
    """The moves of the last hour.

    `begun_seconds` is when each began, made or not, and `tried_seconds` when the last one that is
    over ended. `last` is the last one that was made. `regretted` is when a role last had to give
    back an engine. `reported_seconds` is when those ended that nodes report, whoever asked for
    them: these may be among the others, by an earlier planner, or by hand.
    """

    begun_seconds: tuple[float, ...] = ()
    tried_seconds: float | None = None
    new: NewMove | None = None
    last: DoneMove | None = None
    regretted: Mapping[Role, float] = field(default_factory=dict)
    reported_seconds: tuple[float, ...] = ()

    @property
    def under_way(self) -> bool:
        """Whether a move has begun but not ended."""
        return self.new is not None

    def begun(self, now_seconds: float, to_role: Role, *, undoes: bool = False) -> MoveLog:
        """Add a move that begins now; moves older than an hour are dropped.

        Args:
            now_seconds: Unix time.
            to_role: New role of its engine.
            undoes: It reverts the last move.
        """
        begun_seconds = (*_recent(self.begun_seconds, now_seconds), now_seconds)
        return replace(self, begun_seconds=begun_seconds, new=NewMove(to_role, undoes))

    def ended(self, now_seconds: float, *, done: bool = True) -> MoveLog:
        """End the move under way.

        One that was not `done` cannot be reverted later: the one before remains the last.
        """
        ended = replace(self, tried_seconds=now_seconds, new=None)
        if not done or self.new is None:
            return ended
        regretted = dict(self.regretted)
        if self.new.undoes and self.last is not None:
            regretted[self.last.to_role] = now_seconds
        last = DoneMove(self.new.to_role, now_seconds, self.new.undoes)
        return replace(ended, last=last, regretted=regretted)

    def not_begun(self) -> MoveLog:
        """Count the move under way as none, as nobody could begin it; it still has to end."""
        return replace(self, begun_seconds=self.begun_seconds[:-1])

    def until(self, now_seconds: float) -> MoveLog:
        """The log without times after now: the clock was set back, so they say nothing.

        A move under way remains so.
        """
        tried, last = self.tried_seconds, self.last
        return replace(
            self,
            begun_seconds=tuple(each for each in self.begun_seconds if each <= now_seconds),
            tried_seconds=None if tried is None or tried > now_seconds else tried,
            last=None if last is None or last.ended_seconds > now_seconds else last,
            regretted={role: at for role, at in self.regretted.items() if at <= now_seconds},
            reported_seconds=tuple(each for each in self.reported_seconds if each <= now_seconds),
        )

    def why_not(self, limits: RebalanceLimits, now_seconds: float) -> str:
        """Return why no move may begin now; empty if one may.

        Times after now are ignored: the clock was set back since.
        """
        if self.under_way:
            return "a move is under way"
        both = (self.begun_seconds, self.reported_seconds)
        recent = max(len(_recent(each, now_seconds)) for each in both)
        if recent >= limits.moves_per_hour:
            return f"{counted(recent, 'move')} began within the last hour: no more are allowed"
        ends = (self.tried_seconds, *self.reported_seconds)
        ago_seconds = (now_seconds - each for each in ends if each is not None)
        since = min((each for each in ago_seconds if each >= 0), default=math.inf)
        if since < limits.cool_down_seconds:
            return f"the last move ended {since:.0f} s ago: cooling down"
        return ""


def _recent(times_seconds: tuple[float, ...], now_seconds: float) -> tuple[float, ...]:
    return tuple(each for each in times_seconds if 0 <= now_seconds - each < HOUR_SECONDS)
