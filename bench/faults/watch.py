"""Polls a node continuously: its page, its counters, its processes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from bench.faults import processes
from bench.node.rig import read_page

from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch

POLL_SECONDS = 0.25
_PAGE_SECONDS = 5.0
Samples = Mapping[str, float]

# A daemon's counters of itself start at zero with it.
OF_ONE_DAEMON = (
    "process_",
    "disagg_control_",
    "disagg_http_",
    "disagg_reassign_",
    "disagg_run_folder_",
    "disagg_collector_unexpected_failures_total",
)
# Counters derived from an engine's page start with the first page that a daemon has read.
FROM_PAGES = (
    "disagg_engine_arrivals_",
    "disagg_engine_ends_",
    "disagg_engine_finished_",
    "disagg_engine_kv_",
    "disagg_engine_prompt_tokens_",
    "disagg_engine_rejections_",
    "disagg_engine_ttft_",
    "disagg_node_prompt_tokens_",
    "disagg_request_",
    "disagg_router_",
)


class Watch:
    """The last page, and what was wrong with any; `known` are children that other code waits for.

    A daemon that is down is a gap, not a fault.
    """

    def __init__(self, url: str, ports: Mapping[str, int], known: Callable[[], Collection[int]]):
        self.page: Samples = {}
        self.seen_at = 0.0
        self.back: set[str] = set()
        self.doubled: set[str] = set()
        self._url = url
        self._ports = dict(ports)
        self._known = known
        self._highest: dict[str, tuple[float, int]] = {}
        self._daemon = 0
        self._twice: dict[str, frozenset[int]] = {}
        self._stop = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[Watch]:
        """Poll until the block ends."""
        threads = [
            threading.Thread(target=self._repeat, args=(a,)) for a in (self._read_page, self._count)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def another_daemon(self) -> None:
        """Treat the next pages as those of another daemon."""
        self._daemon += 1

    def forget(self, names: tuple[str, ...]) -> None:
        """Allow counters with these prefixes to restart at zero."""
        for series in tuple(self._highest):
            if series.startswith(names):
                del self._highest[series]

    def until(self, true: Callable[[Samples], bool], seconds: float) -> float | None:
        """Wait for a new page that satisfies the condition; return how long that took."""
        began, tick = time.monotonic(), threading.Event()
        while time.monotonic() < began + seconds:
            if self.seen_at > began and true(self.page):
                return self.seen_at - began
            tick.wait(0.05)
        return None

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self._stop.wait(POLL_SECONDS):
            act()

    def _read_page(self) -> None:
        try:
            page = read_page(fetch(self._url, _PAGE_SECONDS))
        except (DisaggError, ValueError):
            return
        self.page, self.seen_at = page, time.monotonic()
        for series, value in page.items():
            name = series.partition("{")[0]
            if name.endswith("_total") and not name.startswith(OF_ONE_DAEMON):
                before, daemon = self._highest.get(series, (0.0, 0))
                reset = daemon != self._daemon and name.startswith(FROM_PAGES)
                if value < before - 1e-9 and not reset:
                    self.back.add(f"{series}: {value:g} after {before:g}")
                self._highest[series] = value, self._daemon

    def _count(self) -> None:
        processes.bury(self._known())
        for worker, port in self._ports.items():
            # A child just forked still shows its parent's arguments, so it must be seen twice.
            now = frozenset(processes.engines_at(port))
            if len(now & self._twice.get(worker, frozenset())) > 1:
                self.doubled.add(f"{worker}: {sorted(now)}")
            self._twice[worker] = now
