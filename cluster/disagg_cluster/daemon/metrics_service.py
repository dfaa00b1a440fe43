"""Serves the node's pages over HTTP with access control, and writes files for other exporters."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from disagg_cluster.config import Bridges, Listen
from disagg_cluster.deploy.job_files import JobFiles
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.http.server.authentication import OPEN
from disagg_exporter.http.server.node_site import node_site
from disagg_exporter.http.server.scrape_rate import ScrapeRate
from disagg_exporter.http.server.server import MetricsServer
from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.landing.links import PageLinks
from disagg_exporter.model import CollectorStatus, Snapshot
from disagg_exporter.model.waits import LatencyTargets

if TYPE_CHECKING:
    from disagg_cluster.nodefile.web.access import WebConfigWatch

_log = logging.getLogger("disagg_node")


class MetricsService:
    """Serves the node's pages while it runs.

    Args:
        listen: The address and the web-config file, if any.
        bridges: Outputs for other exporters.
        name: The displayed name of the node.
        heartbeat_age_seconds: Seconds since the daemon's loop last ran.
        links: Related pages.
        targets: The latency targets for users.
    """

    def __init__(
        self,
        listen: Listen,
        bridges: Bridges,
        name: str,
        heartbeat_age_seconds: Callable[[], float],
        links: PageLinks | None = None,
        targets: LatencyTargets | None = None,
    ) -> None:
        self._links = links
        self._listen = listen
        folder = bridges.hpc_job_dir
        self._job_files = None if folder is None else JobFiles(Path(folder), log=_log)
        self._name = name
        self._snapshot: Snapshot | None = None
        self._history = AccountHistory(targets)
        self._heartbeat_age_seconds = heartbeat_age_seconds
        self._web: WebConfigWatch | None = None
        self._scrape_rate = ScrapeRate()
        self._server: MetricsServer | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the page is scraped every few seconds."""
        return self._scrape_rate.is_high(time.monotonic())

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot shown now; None before the first."""
        return self._snapshot

    def show(self, snapshot: Snapshot) -> None:
        """Show this snapshot from now on."""
        self._history.remember(snapshot)
        self._snapshot = snapshot
        if self._job_files is not None:
            self._job_files.show((account.device, account.role) for account in snapshot.accounts)

    @contextlib.contextmanager
    def running(self) -> Iterator[ListenAddress]:
        """Serve; yields the address with the actual port.

        Raises:
            ConfigError: The web-config file cannot be used.
            ListenError: The address cannot be listened on.
        """
        with contextlib.ExitStack() as stack:
            if self._job_files is not None:
                stack.callback(self._job_files.close)
            if self._listen.web_config is not None:
                self._web = _watch(Path(self._listen.web_config))
                stack.enter_context(self._web)
            site = node_site(
                self._scraped,
                lambda: "" if self._snapshot else "nothing was measured yet",
                self._heartbeat_age_seconds,
                name=self._name,
                history=self._history,
                links=self._links,
            )
            self._server = server = MetricsServer(
                self._listen.metrics_address,
                site,
                access=lambda: OPEN if self._web is None else self._web.access,
            )
            stack.callback(server.close)
            yield server.start()

    def reload(self) -> None:
        """Check the web-config file now rather than in a few seconds."""
        if self._web is not None:
            self._web.check_now()

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Status of the web-config file, the files for other exporters, and the server."""
        parts = (self._web, self._job_files)
        served = () if self._server is None else self._server.collectors()
        return (*served, *(part.status() for part in parts if part is not None))

    def http_refusals(self) -> dict[str, int]:
        """Requests the server refused, by reason; empty before it runs."""
        return {} if self._server is None else self._server.refusals()

    def _scraped(self) -> Snapshot | None:
        self._scrape_rate.record(time.monotonic())
        return self._snapshot


def scheme_of(listen: Listen) -> Literal["http", "https"]:
    """Whether the pages use TLS; raises ConfigError if the web-config file cannot be used."""
    if listen.web_config is None:
        return "http"
    from disagg_cluster.nodefile.web.access import load

    return "http" if load(Path(listen.web_config)).tls is None else "https"


def _watch(path: Path) -> WebConfigWatch:
    # Imported only with such a file, to keep OpenSSL and bcrypt out of memory otherwise.
    from disagg_cluster.nodefile.web.access import WebConfigWatch

    return WebConfigWatch(path, _log)
