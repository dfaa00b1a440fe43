"""The pages of a node: metrics and landing page."""

from __future__ import annotations

import time
from collections.abc import Callable

from disagg_exporter.http.server.routes import Site
from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.landing.links import PageLinks
from disagg_exporter.landing.page import Landing
from disagg_exporter.landing.recent import recent_json
from disagg_exporter.metrics.page_cache import PageCache
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.model import Snapshot


def node_site(
    snapshot: Callable[[], Snapshot | None],
    why_not_ready: Callable[[], str],
    heartbeat_age_seconds: Callable[[], float],
    now_ns: Callable[[], int] = time.monotonic_ns,
    name: str = "",
    history: AccountHistory | None = None,
    links: PageLinks | None = None,
) -> Site:
    """Return the pages.

    Args:
        snapshot: Returns the latest snapshot at once; None before there is one.
        why_not_ready: Returns an empty text when ready, else the reason.
        heartbeat_age_seconds: Returns the time since the last round of the daemon's loop.
        now_ns: The snapshot's clock.
        name: The node's name on the landing page.
        history: The devices' accounts of the last minute; its owner adds new snapshots.
        links: The landing page's links to other pages.
    """
    known = history or AccountHistory()
    landing = Landing(name, snapshot, known, now_ns, links)
    pages = PageCache(snapshot, rows_of, now_ns)
    return Site(
        pages,
        landing,
        why_not_ready,
        heartbeat_age_seconds,
        view=landing.values,
        recent=lambda: recent_json(known, snapshot()),
    )
