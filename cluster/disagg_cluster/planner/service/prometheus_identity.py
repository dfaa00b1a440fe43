"""The planner's credentials for Prometheus, from an HTTP config file that may change."""

from __future__ import annotations

import logging
from pathlib import Path

from disagg_cluster.prometheus import http_config_file
from disagg_cluster.prometheus.credentials import Credentials
from disagg_cluster.prometheus.prometheus_api import Prometheus
from disagg_exporter.collectors.health import CollectorHealth
from disagg_exporter.model import CollectorStatus

_log = logging.getLogger("disagg_node")


class PrometheusIdentity:
    """Applies an HTTP config file to a Prometheus client, and reloads it before each round.

    Mounted secrets change: the file, or one that it names, may be replaced. If it becomes unusable,
    the last usable credentials stay in effect and `status` reports the failure.

    Args:
        prometheus: The client.
        path: The HTTP config file.
        by_tls: Whether the client uses https.

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

    def reload(self) -> None:
        """Apply the file if it has changed."""
        with self._health.round():
            self._read()

    def status(self) -> CollectorStatus:
        """Whether the last reload succeeded."""
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
    """Content of a file, None if unreadable; the error is reported where the file is used."""
    try:
        return path.read_bytes()
    except OSError:
        return None
