"""State of one engine's page, from all scrapes so far."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from disagg_cluster.telemetry.pages.page_reader import ScrapeResult
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.engine_pages.window import CumulativeCounts, EngineWindow, window
from disagg_exporter.http.client.unreachable import EngineUnreachable
from disagg_exporter.model import CollectorStatus, EnginePage, TlsStatus


@dataclass(slots=True)
class PageState:
    """The state of one engine's page; None means unknown, or outdated.

    Its next scrape is due at `due_ns`. `window` is what happened between its last two pages,
    `lines` the kept lines of the last one. `answered_ns` is when anything last answered where its
    page should be, `worked_ns` an instant at or after which it did some work, by two pages of the
    same process; `tls` how its server was verified.
    """

    health: CollectorHealth
    due_ns: int = 0
    under_way: bool = False
    page: EnginePage | None = None
    window: EngineWindow | None = None
    version: str | None = None
    lines: tuple[str, ...] = ()
    tally: CumulativeCounts = field(default_factory=CumulativeCounts)
    answered_ns: int | None = None
    worked_ns: int | None = None
    _last: EnginePage | None = None
    tls: TlsStatus | None = None

    @property
    def status(self) -> CollectorStatus | None:
        """How the last scrape went; None before the first."""
        return self.health.status() if self.health.tried else None

    def ingest(self, result: ScrapeResult, now_ns: int) -> None:
        """Ingest the result of the last scrape; an unforeseen error makes it a failed scrape."""
        self.under_way = False
        self.tls = _tls_status(result)
        try:
            self._ingest(result, now_ns)
        except Exception as error:  # noqa: BLE001 - what an engine serves must not end us
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Record that a scrape failed."""
        self.under_way = False
        self._forget_page()
        self.health.fail(error)

    def _ingest(self, result: ScrapeResult, now_ns: int) -> None:
        if result.page is None:
            self._miss(result, now_ns)
            return
        before, self.page, self.lines = self.page, result.page, result.lines
        if before is not None and before.kind == result.page.kind:
            self.window = window(before, result.page)
        self._compare(result.page)
        if result.version is not None:
            self.version = result.version
        self.tally.ingest(result.page)
        self.answered_ns = result.page.t_ns
        self.health.succeed((now_ns - result.job.began_ns) / 1e9)

    def rest(self) -> None:
        """Record that the engine has no process; the next one counts from zero."""
        self._forget_page()
        self.tls = None
        self.health.rest()
        self.worked_ns = self._last = None
        self.tally.restart()

    def _miss(self, result: ScrapeResult, now_ns: int) -> None:
        self._forget_page()
        if result.answered:
            self.answered_ns = now_ns
        self.health.fail(result.error or "no page", (now_ns - result.job.began_ns) / 1e9)

    def _compare(self, page: EnginePage) -> None:
        """Note whether it worked since its previous page, even if scrapes in between failed."""
        last, self._last = self._last, page
        if last is not None and last.kind == page.kind and window(last, page).did_work:
            self.worked_ns = last.t_ns

    def _forget_page(self) -> None:
        """Show nothing rather than what may be another process's."""
        self.page = self.window = self.version = None
        self.lines = ()


def _tls_status(result: ScrapeResult) -> TlsStatus | None:
    error = result.error
    fault = error.tls_fault if isinstance(error, EngineUnreachable) else None
    if not result.job.speaks_tls and fault is None:
        return None
    verified = "" if result.job.tls is None else result.job.tls.verified.value
    return TlsStatus(verified, "" if fault is None else fault.value)


def page_health(engine: str, log: logging.Logger) -> CollectorHealth:
    """Return the collector of one engine's page."""
    # One failure is not logged: an engine that ends is scraped once more than it can answer.
    return CollectorHealth(
        f"engine:{engine}",
        log,
        subject=engine,
        failing="metrics page: ",
        recovered="metrics page is readable again",
        silent_failures=1,
    )
