"""What an engine that can switch roles has been doing: changed only by what lasts; pure.

Its flags say what it began as. Its traffic says what it does, and a window in which it switches
looks like both phases at once: so another role counts only once two windows in a row tell of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from disagg_exporter.model import Role
from disagg_exporter.roles.claims import Kind
from disagg_exporter.roles.nouns import Traffic
from disagg_exporter.roles.traffic import traffic_claim

WINDOW_SECONDS = 10.0
"""How long traffic is looked at; longer where there is too little of it to tell."""


@dataclass(slots=True)
class SwitchingRole:
    """The role that one engine was last seen in for sure, by the traffic that told of it."""

    told_by: Traffic | None = None
    role: Role | None = None
    _since: tuple[float, Traffic] | None = None
    _next: Role | None = None

    def take(self, total: Traffic, now_seconds: float) -> Traffic | None:
        """Take the totals of its page; return the traffic that tells its role, None for none.

        Args:
            total: All since its engine began.
            now_seconds: On any clock that only goes forward.
        """
        if self._since is None or total.fell_below(self._since[1]):
            self.told_by = self.role = self._next = None
            self._since = now_seconds, total
        if self.role is None:
            # All that it has done so far is the best that is known.
            self._decide(total)
        elif now_seconds - self._since[0] >= WINDOW_SECONDS:
            recent = total.since(self._since[1])
            told = traffic_claim(recent)
            if told is not None and told.is_enough:
                self._decide(recent)
                self._since = now_seconds, total
        return self.told_by

    def _decide(self, traffic: Traffic) -> None:
        told = traffic_claim(traffic)
        if told is None or told.kind is not Kind.TRAFFIC:
            return
        if self.role in (None, told.says) or self._next is told.says:
            self.told_by, self.role, self._next = traffic, told.says, None
        else:
            self._next = told.says
