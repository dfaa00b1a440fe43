"""Which moves of one model were begun, and whether the next one may be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS, RebalanceLimits


@dataclass(frozen=True, slots=True)
class MoveLog:
    """When moves of the last hour began, and when the last of them ended; None while it goes on."""

    begun_seconds: tuple[float, ...] = ()
    ended_seconds: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether a move has begun and not ended."""
        return bool(self.begun_seconds) and self.ended_seconds is None

    def begun(self, now_seconds: float) -> MoveLog:
        """With one more that begins now; what is older than an hour is forgotten."""
        lately = self._lately(now_seconds)
        return MoveLog((*lately, now_seconds))

    def ended(self, now_seconds: float) -> MoveLog:
        """With the end of the one that is under way."""
        return replace(self, ended_seconds=now_seconds)

    def why_not(self, limits: RebalanceLimits, now_seconds: float) -> str:
        """Why no move may begin now; empty if one may."""
        if self.under_way:
            return "a move is under way"
        lately = self._lately(now_seconds)
        if len(lately) >= limits.moves_per_hour:
            return f"{len(lately)} moves began within the last hour: no more may"
        since = None if self.ended_seconds is None else now_seconds - self.ended_seconds
        if since is not None and since < limits.cool_down_seconds:
            return f"the last move ended {max(0.0, since):.0f} s ago: it cools down"
        return ""

    def _lately(self, now_seconds: float) -> tuple[float, ...]:
        return tuple(each for each in self.begun_seconds if each > now_seconds - HOUR_SECONDS)
