"""Users of engines on several machines: `users MODEL prefill=URL… decode=URL…` until SIGTERM.

The demo's load, with health checks as by a router: an engine that does not answer gets no more
requests until it answers again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence

from disagg_cluster.demo.load import LoadGenerator, send_through
from disagg_cluster.demo.pools import PoolUrls
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch

_CHECK_SECONDS = 1.0
_ANSWER_SECONDS = 0.5
_REQUEST_SECONDS = 10.0


class HealthyEngines:
    """The engines that answered the last health check.

    Args:
        engines: Their URLs by role.
    """

    def __init__(self, engines: Mapping[str, Sequence[str]]) -> None:
        self._engines = engines
        self._now = PoolUrls((), ())

    def pools(self) -> PoolUrls:
        """Return the engines that answered."""
        return self._now

    def check(self) -> None:
        """Check all engines."""
        prefill, decode = (
            tuple(filter(_is_healthy, self._engines[role])) for role in ("prefill", "decode")
        )
        self._now = PoolUrls(prefill, decode)


def _is_healthy(url: str) -> bool:
    try:
        fetch(f"{url}/health", _ANSWER_SECONDS)
    except DisaggError:
        return False
    return True


def main() -> None:
    """Send requests endlessly."""
    model, *named = sys.argv[1:]
    engines: dict[str, list[str]] = {"prefill": [], "decode": []}
    for each in named:
        role, _, url = each.partition("=")
        engines[role].append(url)
    healthy = HealthyEngines(engines)
    usual = PoolUrls(tuple(engines["prefill"]), tuple(engines["decode"]))
    load = LoadGenerator(usual, send_through(model, timeout_seconds=_REQUEST_SECONDS))
    load.follow(healthy.pools)
    tick = threading.Event()
    while not (healthy.pools().prefill and healthy.pools().decode):
        healthy.check()
        tick.wait(_CHECK_SECONDS)
    load.start()
    while True:
        healthy.check()
        tick.wait(_CHECK_SECONDS)


if __name__ == "__main__":
    main()
