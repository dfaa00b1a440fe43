"""Scrapes and parses the metrics pages of all engines on one thread."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from disagg_cluster.host.foreign_json import parse_foreign
from disagg_exporter.engine_pages.adapters import version_path
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import PageError, UnknownPageError
from disagg_exporter.engine_pages.fronts import is_front_page
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.http.client.exchange import Address, FetchRequest, FetchResult
from disagg_exporter.http.client.page_poller import PagePoller
from disagg_exporter.http.client.scrape import MAX_PAGE_BYTES
from disagg_exporter.http.client.unreachable import EngineRefused, EngineUnreachable
from disagg_exporter.model import EnginePage

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

DEADLINE_SECONDS = 2.0
"""The deadline of one request, however slowly the engine sends."""

_OF_A_FRONT = (
    "this is the page of a frontend or router, not of an engine: name its address under "
    "`frontends:` in the node file instead"
)

KeepLines = Callable[[str, bytes], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    """One scrape to be made of an engine.

    `base` is the root of its server and `path` where its page is. `addresses` is empty while the
    server's name has yet to be looked up, or how to speak TLS with it (`tls`) to be found out. A
    `versionless` engine is asked for its version, too. `began_ns` is when the job was made.
    """

    engine: str
    base: str
    path: str
    addresses: tuple[Address, ...]
    versionless: bool
    began_ns: int
    tls: ClientTls | None = None

    @property
    def speaks_tls(self) -> bool:
        """Whether its server is asked over TLS."""
        return self.base.startswith("https:")

    @property
    def url(self) -> str:
        """The address of its page."""
        return self.base + self.path


@dataclass(frozen=True, slots=True)
class ScrapeResult:
    """The outcome of a scrape: a page, or why there is none.

    Without a page, `error` says why, and `answered` whether anything answered. `version` is None if
    it was not asked for.
    """

    job: ScrapeJob
    page: EnginePage | None = None
    lines: tuple[str, ...] = ()
    version: str | None = None
    error: Exception | None = None
    answered: bool = False


class PageReader:
    """Scrapes engines on demand, one scrape at a time for each.

    Args:
        deliver: Receives the results of scrapes, on the reader's thread.
        keep_lines: Which lines of an engine's page are kept as they are.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[ScrapeResult]], None],
        keep_lines: KeepLines,
    ) -> None:
        self._deliver = deliver
        self._keep_lines = keep_lines
        self._poller = PagePoller(MAX_PAGE_BYTES)
        self._orders: deque[ScrapeJob | str] = deque()
        self._stopping = threading.Event()
        self._jobs: dict[str, ScrapeJob] = {}
        self._versionless: dict[str, ScrapeResult] = {}
        self._heads: dict[str, SeriesKeys] = {}

    def scrape(self, jobs: Sequence[ScrapeJob]) -> None:
        """Run these jobs; an engine's previous result must have been delivered before."""
        self._orders.extend(jobs)
        self._poller.wake()

    def forget(self, engine: str) -> None:
        """Disconnect from an engine and forget its pages; no scrape of it may be under way."""
        self._orders.append(engine)

    def stop(self) -> None:
        """Let `run` end; nothing may be submitted afterwards."""
        self._stopping.set()
        self._poller.wake()

    def run(self) -> None:
        """Read until stopped, on the caller's thread."""
        with closing(self._poller):
            while not self._stopping.is_set():
                self._run_orders()
                received = map(self._receive, self._poller.poll())
                results = [result for result in received if result is not None]
                if results:
                    self._deliver(results)

    def _run_orders(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, str):
                self._poller.forget(order)
                self._heads.pop(order, None)
            else:
                self._jobs[order.engine] = order
                self._ask(order, order.url)

    def _ask(self, job: ScrapeJob, url: str) -> None:
        request = FetchRequest(job.engine, url, job.addresses, DEADLINE_SECONDS, tls=job.tls)
        self._poller.submit(request)

    def _receive(self, fetched: FetchResult) -> ScrapeResult | None:
        """Return the result of a scrape once it is over."""
        engine = fetched.request.key
        page = self._versionless.pop(engine, None)
        if page is not None:
            return _with_version(page, fetched)
        job = self._jobs.pop(engine)
        if isinstance(fetched.page, EngineUnreachable):
            answered = isinstance(fetched.page, EngineRefused) or fetched.page.speaks
            return ScrapeResult(job, error=fetched.page, answered=answered)
        if isinstance(fetched.page, Exception):
            return ScrapeResult(job, error=fetched.page)
        result = self._read(job, fetched.page)
        if result.page is None or not job.versionless:
            return result
        self._versionless[engine] = result
        self._ask(job, job.base + version_path(result.page.kind))
        return None

    def _read(self, job: ScrapeJob, text: bytes) -> ScrapeResult:
        try:
            lines = self._keep_lines(job.engine, text)
            heads = self._heads.setdefault(job.engine, SeriesKeys())
            return ScrapeResult(job, parse_page(text, job.began_ns, heads), lines)
        except UnknownPageError as error:
            front = PageError(_OF_A_FRONT) if is_front_page(text) else error
            return ScrapeResult(job, error=front, answered=True)
        except PageError as error:
            return ScrapeResult(job, error=error, answered=True)
        except Exception as error:  # noqa: BLE001 - what anybody serves must not end us
            return ScrapeResult(job, error=error)


def _with_version(result: ScrapeResult, fetched: FetchResult) -> ScrapeResult:
    if isinstance(fetched.page, Exception) and not isinstance(fetched.page, EngineUnreachable):
        return ScrapeResult(result.job, error=fetched.page, answered=True)
    answer = None
    if isinstance(fetched.page, bytes):
        with contextlib.suppress(ValueError):
            answer = parse_foreign(fetched.page)
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, str) or not version.isprintable():
        version = ""
    return replace(result, version=version)
