"""Who the planner is to its Prometheus, by an HTTP config file that may change while it runs."""

from __future__ import annotations

import logging
from pathlib import Path

from disagg_cluster.prometheus import http_config_file
from disagg_cluster.prometheus.credentials import Credentials
from disagg_cluster.prometheus.prometheus_api import Prometheus
from disagg_exporter.collectors.health import CollectorHealth
from disagg_exporter.model import CollectorStatus

_log = logging.getLogger("disagg_node")


class AskerIdentity:
    """A Prometheus that is asked as the file says, the file looked at again before each round.

    So it is with secrets that are mounted: the file, or one that it names, is another one day. Of a
    file that cannot be used what was read before stands, and `status` says so.

    Args:
        prometheus: Who is asked.
        path: The HTTP config file.
        by_tls: Whether it is asked by https.

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, prometheus: Prometheus, path: Path, by_tls: bool) -> None:
        self._prometheus = prometheus
        self._path = path
        self._by_tls = by_tls
        self._health = CollectorHealth("planner:http_config", _log)
        self._known: tuple[object, ...] = ()
        self._read()

    def look(self) -> None:
        """Take up what has changed."""
        with self._health.round():
            self._read()

    def status(self) -> CollectorStatus:
        """Whether the file could be used when it was looked at last."""
        return self._health.status()

    def _read(self) -> None:
        found = http_config_file.load(self._path)
        known = (found.authorization, found.tls, *map(_bytes_of, found.tls_files))
        if known == self._known:
            return
        tls = found.context() if self._by_tls else None
        self._prometheus.renew(_headers(found), tls)
        self._known = known


def _headers(found: Credentials) -> dict[str, str]:
    return {"Authorization": found.authorization} if found.authorization else {}


def _bytes_of(path: Path) -> bytes | None:
    """None of what cannot be read: that is told, as of which key it is, where it is used."""
    try:
        return path.read_bytes()
    except OSError:
        return None
