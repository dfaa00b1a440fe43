"""Which moves of one model were begun, and whether the next one may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS, RebalanceLimits
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class MoveLog:
    """When moves of the last hour began, and when the last of them ended; None while it goes on.

    The last was to `last_to`, and took back the one before if `last_undid`: that one was to
    `taken_back`. `regretted` says when a role last had to give back what it had been given.
    """

    begun_seconds: tuple[float, ...] = ()
    ended_seconds: float | None = None
    last_to: Role | None = None
    last_undid: bool = False
    taken_back: Role | None = None
    regretted: Mapping[Role, float] = field(default_factory=dict)

    @property
    def under_way(self) -> bool:
        """Whether a move has begun and not ended."""
        return bool(self.begun_seconds) and self.ended_seconds is None

    def begun(self, now_seconds: float, to_role: Role, *, undoes: bool = False) -> MoveLog:
        """With one more that begins now; what is older than an hour is forgotten.

        Args:
            now_seconds: Unix time.
            to_role: What its engine becomes.
            undoes: It takes the last one back, which is regretted.
        """
        return MoveLog(
            (*self._lately(now_seconds), now_seconds),
            last_to=to_role,
            last_undid=undoes,
            taken_back=self.last_to if undoes else None,
            regretted=self.regretted,
        )

    def ended(self, now_seconds: float, *, done: bool = True) -> MoveLog:
        """With the end of the one under way; one that was not `done` cannot be regretted.

        Where it was to take the one before back, that one stands as it stood.
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
