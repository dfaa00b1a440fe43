"""What an engine that can switch roles has been doing: changed only by what lasts; pure.

Its flags say what it began as. Its traffic says what it does, and a window in which it switches
looks like both phases at once: so another role counts only once two windows in a row tell of it.
One that switches more often than that has no one role: none is claimed while its windows disagree.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.claims import Kind
from disagg_exporter.roles.evidence.traffic import traffic_claim
from disagg_exporter.roles.evidence.types import Traffic

WINDOW_SECONDS = 10.0
"""How long traffic is looked at; longer where there is too little of it to tell."""
REMEMBERED_WINDOWS = 6
"""Of so many windows more than half must tell of a role for it to be kept."""


@dataclass(slots=True)
class SwitchingRole:
    """The role that one engine was last seen in for sure, by the traffic that told of it."""

    told_by: Traffic | None = None
    role: Role | None = None
    _since: tuple[float, Traffic] | None = None
    _next: Role | None = None
    _is_disputed: bool = False
    _agreed: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED_WINDOWS))

    def take(self, total: Traffic, now_seconds: float) -> Traffic | None:
        """Take the totals of its page; return the traffic that tells its role, None for none.

        Args:
            total: All since its engine began.
            now_seconds: On any clock that only goes forward.
        """
        if self._since is None or total.fell_below(self._since[1]):
            self._forget()
            self._is_disputed = False
            self._since = now_seconds, total
        if self.role is None and not self._is_disputed:
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
        says = told.says if told is not None and told.kind is Kind.TRAFFIC else None
        if says is not None and says is not self.role:
            if says is not self._next and not self._is_first:
                self._next = says
            else:
                self._forget()
                self.told_by, self.role, self._is_disputed = traffic, says, False
                return
        elif says is not None:
            self.told_by, self._next = traffic, None
        if self.role is None:
            return
        self._agreed.append(says is self.role)
        if len(self._agreed) == REMEMBERED_WINDOWS and 2 * sum(self._agreed) <= REMEMBERED_WINDOWS:
            self._forget()
            self._is_disputed = True

    @property
    def _is_first(self) -> bool:
        """Whether it never had a role, so that there is nothing to hold on to."""
        return self.role is None and not self._is_disputed

    def _forget(self) -> None:
        self.told_by = self.role = self._next = None
        self._agreed.clear()
