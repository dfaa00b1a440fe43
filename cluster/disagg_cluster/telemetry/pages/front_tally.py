"""Accumulates a frontend's or router's counts of user requests, through its restarts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_exporter.engine_pages.fronts import MOST_MODELS, FrontPage
from disagg_exporter.engine_pages.window import counted_on, serving_counts
from disagg_exporter.model import FrontCounts, RequestSource, ServingCounts

STALE_SECONDS = 60.0
"""Unread for longer, it is no longer a source: what its users experience is unknown."""
STALE_READS = 3
"""It stays a source for this many failed scrapes in any case: its interval may be long."""
TURNS_SECONDS = 600.0
"""Several processes answer in turn if earlier ones came back twice within this time."""

_MOST_PROCESSES = 16
_Page = Mapping[str, ServingCounts]
"""The counts of a page, by model."""


class FrontTally:
    """Accumulates counts by model over pages; what a process's first page counts is the past.

    Nothing on a page states which process wrote it. It is attributed to the process from whose last
    page it has grown, and grown the least; one that has grown from none is the first of its
    process. This distinguishes replicas that answer in turn at one address. A model that appears on
    a later page is counted from its first request: programs report nothing of it before.

    Args:
        name: The name it is reported by.
        namespace: The Kubernetes namespace of the engines behind it.
        model_name: The model of requests for which it reports none.
        first_pages: What this many pages count is the past. They make replicas known: the first
            turn to one that has counted more looks like growth.
        interval_seconds: The interval between its scrapes.
    """

    def __init__(
        self,
        name: str,
        namespace: str = "",
        model_name: str = "",
        *,
        first_pages: int = 1,
        interval_seconds: float = 0.0,
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._model_name = model_name
        self._first_pages = first_pages
        self._stale_ns = max(STALE_SECONDS, STALE_READS * interval_seconds) * 1e9
        self._source = RequestSource.FRONTEND
        self._counts: dict[str, ServingCounts] = {}
        self._waiting: dict[str, float] = {}
        self._left_out_models = 0
        # The last page of each process; the process that answered last is at the end.
        self._pages: list[_Page] = []
        self._is_restarted = False
        self._read_ns = 0
        self._returns_ns: tuple[int, ...] = ()

    def ingest(self, page: FrontPage, now_ns: int) -> None:
        """Ingest its next page."""
        self._source, self._left_out_models = page.source, page.left_out_models
        self._read_ns = now_ns
        counted = {each.model_name or self._model_name: each.serving for each in page.models}
        self._waiting = {
            each.model_name or self._model_name: each.waiting
            for each in page.models
            if each.waiting is not None
        }
        before = self._page_before(counted, now_ns)
        if self._first_pages > 0:
            self._first_pages -= 1
            before = counted
        if len(self._counts.keys() | counted.keys()) > MOST_MODELS:
            # Drop the models that it no longer serves.
            self._counts = {name: self._counts[name] for name in self._counts.keys() & counted}
        nothing = ServingCounts()
        for name, serving in counted.items():
            known = self._counts.get(name, nothing)
            self._counts[name] = counted_on(known, before.get(name, nothing), serving)

    def restart(self) -> None:
        """Treat the next page as that of another process, which began to count at 0."""
        self._is_restarted = bool(self._pages)

    def counts(self, now_ns: int) -> FrontCounts:
        """Return what it has counted since its page was first observed."""
        return FrontCounts(
            self._source,
            self._name,
            dict(self._counts),
            self._namespace,
            is_stale=now_ns - self._read_ns > self._stale_ns,
            left_out_models=self._left_out_models,
            waiting=dict(self._waiting),
        )

    def answers_in_turn(self, now_ns: int) -> bool:
        """Return whether several processes have recently answered in turn."""
        lately = [t_ns for t_ns in self._returns_ns if now_ns - t_ns <= TURNS_SECONDS * 1e9]
        return len(lately) > 1

    def _page_before(self, page: _Page, now_ns: int) -> _Page:
        """Return the previous page of the process that wrote this one, which replaces it."""
        if self._is_restarted:
            self._is_restarted, self._pages = False, [page]
            return {}
        growths = ((_growth(before, page), -place) for place, before in enumerate(self._pages))
        grown = [(growth, nearness) for growth, nearness in growths if growth is not None]
        if not grown:
            # Nothing says whether this is its past, another replica's, or just after a restart.
            self._pages = [*self._pages, page][-_MOST_PROCESSES:]
            return page
        place = -min(grown)[1]
        if place < len(self._pages) - 1:
            self._returns_ns = (*self._returns_ns, now_ns)[-2:]
        before = self._pages.pop(place)
        self._pages.append(page)
        return before


def _growth(before: _Page, after: _Page) -> float | None:
    """Return how much more a page counts; None if it counts less: another process wrote it."""
    old, new = _flat(before), _flat(after)
    if any(count > new.get(key, -1.0) for key, count in old.items()):
        return None
    return sum(new.values()) - sum(old.values())


def _flat(page: _Page) -> dict[tuple[str, int], float]:
    return {
        (name, place): count
        for name, serving in page.items()
        for place, count in enumerate(serving_counts(serving))
        if count is not None
    }
