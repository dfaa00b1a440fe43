"""Recent moves of one model, and whether another one may begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS, RebalanceLimits
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class MoveLog:
    """When moves of the last hour began, and when the last one ended; None while it is under way.

    The last move was to `last_to`. If `last_undid`, it reverts the one before, which was to
    `taken_back`. `regretted` is when a role last had to give back an engine.
    """

    begun_seconds: tuple[float, ...] = ()
    ended_seconds: float | None = None
    last_to: Role | None = None
    last_undid: bool = False
    taken_back: Role | None = None
    regretted: Mapping[Role, float] = field(default_factory=dict)

    @property
    def under_way(self) -> bool:
        """Whether a move has begun but not ended."""
        return bool(self.begun_seconds) and self.ended_seconds is None

    def begun(self, now_seconds: float, to_role: Role, *, undoes: bool = False) -> MoveLog:
        """Add a move that begins now; moves older than an hour are dropped.

        Args:
            now_seconds: Unix time.
            to_role: New role of its engine.
            undoes: It reverts the last move.
        """
        return MoveLog(
            (*self._recent(now_seconds), now_seconds),
            last_to=to_role,
            last_undid=undoes,
            taken_back=self.last_to if undoes else None,
            regretted=self.regretted,
        )

    def ended(self, now_seconds: float, *, done: bool = True) -> MoveLog:
        """End the move under way; one that was not `done` cannot be reverted later.

        If a move that failed was to revert the one before, that one remains the last.
        """
        back, regretted = self.taken_back, dict(self.regretted)
        if not done:
            return replace(
                self, ended_seconds=now_seconds, last_to=back, last_undid=False, taken_back=None
            )
        if back is not None:
            regretted[back] = now_seconds
        return replace(self, ended_seconds=now_seconds, regretted=regretted)

    def why_not(self, limits: RebalanceLimits, now_seconds: float) -> str:
        """Return why no move may begin now; empty if one may.

        Times after now are ignored: the clock was set back since.
        """
        if self.under_way:
            return "a move is under way"
        recent = self._recent(now_seconds)
        if len(recent) >= limits.moves_per_hour:
            return f"{len(recent)} moves began within the last hour: no more are allowed"
        since = None if self.ended_seconds is None else now_seconds - self.ended_seconds
        if since is not None and 0 <= since < limits.cool_down_seconds:
            return f"the last move ended {since:.0f} s ago: cooling down"
        return ""

    def _recent(self, now_seconds: float) -> tuple[float, ...]:
        return tuple(each for each in self.begun_seconds if 0 <= now_seconds - each < HOUR_SECONDS)
