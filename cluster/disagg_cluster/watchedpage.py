"""What the looks at one engine's page have given so far."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from disagg_cluster.pagereader import Look, Seen
from disagg_exporter.model import CollectorStatus, EnginePage
from disagg_exporter.pages import EngineWindow, Tally, window


@dataclass(slots=True)
class Watched:
    """One engine. Its next look is due at `due_ns`; None of the rest is not known, or not any more.

    `window` is what happened between its last two pages, `lines` what was kept of the last one.
    `answered_ns` is when anything answered last where its page should be.
    """

    due_ns: int = 0
    under_way: bool = False
    page: EnginePage | None = None
    window: EngineWindow | None = None
    version: str | None = None
    lines: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    status: CollectorStatus | None = None
    answered_ns: int | None = None
    _complaint: str = ""

    def take(self, seen: Seen, now_ns: int, wall_seconds: float, log: logging.Logger) -> None:
        """Take what the last look has seen."""
        self.under_way = False
        if seen.page is None:
            self._miss(seen, now_ns, log)
            return
        before, self.page, self.lines = self.page, seen.page, seen.lines
        if before is not None and before.kind == seen.page.kind:
            self.window = window(before, seen.page)
        if seen.version is not None:
            self.version = seen.version
        self.tally.take(seen.page)
        self.answered_ns = seen.page.t_ns
        self.status = _status(seen.look, now_ns, wall_seconds, success=True)
        if self._complaint:
            self._complaint = ""
            log.info("%s: metrics page is readable again", seen.look.engine)

    def rest(self) -> None:
        """Take that the engine has no process; the next one counts from zero."""
        self._forget_page()
        self.status = None
        self.tally.begin_anew()

    def _miss(self, seen: Seen, now_ns: int, log: logging.Logger) -> None:
        before = self.status
        self._forget_page()
        if seen.answered:
            self.answered_ns = now_ns
        last = before.last_success_timestamp_seconds if before else None
        self.status = _status(seen.look, now_ns, last, success=False)
        # Once is no news: an engine that ends is asked once more than it can answer.
        if before is not None and not before.success and self._complaint != seen.cause:
            self._complaint = seen.cause
            log.warning("%s: metrics page: %s", seen.look.engine, seen.why)

    def _forget_page(self) -> None:
        """Have nothing rather than what may be another process's."""
        self.page = self.window = self.version = None
        self.lines = ()


def _status(look: Look, now_ns: int, last: float | None, *, success: bool) -> CollectorStatus:
    seconds = (now_ns - look.began_ns) / 1e9
    return CollectorStatus(f"engine:{look.engine}", success, seconds, last)
