"""Reads the pages of all engines on one thread: asks for them and takes from them what we use."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from disagg_exporter.engine_pages.adapters import version_path
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.exposition.series_keys import SeriesKeys
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.http.client.fetch import Address, Ask, EngineRefused, EngineUnreachable, Told
from disagg_exporter.http.client.page_poller import Asking
from disagg_exporter.http.client.scrape import MAX_PAGE_BYTES
from disagg_exporter.model import EnginePage

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

KeepLines = Callable[[str, bytes], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Look:
    """One look to be taken at an engine.

    `base` is the root of its server and `path` where its page is. `addresses` are none while the
    server's name has yet to be looked up, or how to speak TLS with it (`tls`) to be found out. One
    that is `versionless` is asked for its version, too. `began_ns` is now.
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
        """Whether its server is asked by TLS."""
        return self.base.startswith("https:")

    @property
    def url(self) -> str:
        """The address of its page."""
        return self.base + self.path


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look has seen: a page, or why there is none.

    Without a page, `error` says why, and `answered` whether anybody answered. `version` is None
    where it was not asked for.
    """

    look: Look
    page: EnginePage | None = None
    lines: tuple[str, ...] = ()
    version: str | None = None
    error: Exception | None = None
    answered: bool = False

    @classmethod
    def without_page(cls, look: Look, error: Exception, *, answered: bool = False) -> Seen:
        """A look that an error ended."""
        return cls(look, error=error, answered=answered)


class PageReader:
    """Takes looks at engines as it is told to, one of each at a time.

    Args:
        deliver: Given what has been seen, on the reader's thread.
        keep_lines: Which lines of an engine's page are kept as they are.
        deadline_seconds: What one question may take, however slowly the engine drips.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[Seen]], None],
        keep_lines: KeepLines,
        deadline_seconds: float,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._deliver = deliver
        self._keep_lines = keep_lines
        self._deadline_seconds = deadline_seconds
        self._clock_ns = clock_ns
        self._asking = Asking(MAX_PAGE_BYTES)
        self._orders: deque[Look | str] = deque()
        self._stopping = threading.Event()
        self._looks: dict[str, Look] = {}
        self._versionless: dict[str, Seen] = {}
        self._heads: dict[str, SeriesKeys] = {}

    def look(self, looks: Sequence[Look]) -> None:
        """Take these looks; none of an engine whose last one has not been delivered."""
        self._orders.extend(looks)
        self._asking.wake()

    def forget(self, engine: str) -> None:
        """Hang up on an engine and forget its pages; no look at it is on its way."""
        self._orders.append(engine)

    def stop(self) -> None:
        """Let `run` end; from then on it may not be told anything."""
        self._stopping.set()
        self._asking.wake()

    def run(self) -> None:
        """Read until stopped, on the thread of the caller."""
        with closing(self._asking):
            while not self._stopping.is_set():
                self._take_orders()
                seen = [s for told in self._asking.step() if (s := self._hear(told)) is not None]
                if seen:
                    self._deliver(seen)

    def _take_orders(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, str):
                self._asking.forget(order)
                self._heads.pop(order, None)
            else:
                self._looks[order.engine] = order
                self._ask(order, order.url)

    def _ask(self, look: Look, url: str) -> None:
        seconds = self._deadline_seconds
        self._asking.ask(Ask(look.engine, url, look.addresses, seconds, tls=look.tls))

    def _hear(self, told: Told) -> Seen | None:
        """Return what a look has seen once it is over."""
        engine = told.ask.key
        page = self._versionless.pop(engine, None)
        if page is not None:
            return _with_version(page, told)
        look = self._looks.pop(engine)
        if isinstance(told.page, EngineUnreachable):
            answered = isinstance(told.page, EngineRefused) or told.page.speaks
            return Seen.without_page(look, told.page, answered=answered)
        if isinstance(told.page, Exception):
            return Seen.without_page(look, told.page)
        seen = self._read(look, told.page)
        if seen.page is None or not look.versionless:
            return seen
        self._versionless[engine] = seen
        self._ask(look, look.base + version_path(seen.page.kind))
        return None

    def _read(self, look: Look, text: bytes) -> Seen:
        try:
            lines = self._keep_lines(look.engine, text)
            heads = self._heads.setdefault(look.engine, SeriesKeys())
            return Seen(look, parse_page(text, look.began_ns, heads), lines)
        except PageError as error:
            return Seen.without_page(look, error, answered=True)
        except Exception as error:  # noqa: BLE001 - what anybody serves must not end us
            return Seen.without_page(look, error)


def _with_version(seen: Seen, told: Told) -> Seen:
    if isinstance(told.page, Exception) and not isinstance(told.page, EngineUnreachable):
        return Seen.without_page(seen.look, told.page, answered=True)
    answer = None
    if isinstance(told.page, bytes):
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(told.page)
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, str) or not version.isprintable():
        version = ""
    return replace(seen, version=version)
