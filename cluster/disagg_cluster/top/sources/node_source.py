"""Reads one node: its metrics page and, if local, its daemon's status of workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import DaemonStatus
from disagg_cluster.control.views import DaemonView, WorkerView
from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.prometheus.http_client import RefusedError, Target, fetch
from disagg_cluster.top.readings.parsing import reading_of
from disagg_cluster.top.readings.recent import readings_of, verdicts_of
from disagg_cluster.top.readings.series import OF_NODES
from disagg_cluster.top.readings.values import LiveReading, WorkerReading
from disagg_cluster.top.view.values import Links
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import SeriesFilter, find
from disagg_exporter.errors import DisaggError

_DEADLINE_SECONDS = 5.0


class ForeignPageError(DisaggError):
    """The page that answers is not one of a disagg-node."""

    exit_code = 2


class NodeSource:
    """Reads the page of one daemon.

    Args:
        target_now: Returns the page's address and how to fetch it; it may change.
        socket: The daemon's socket, if it is local and accessible; otherwise None.
        note: A note to show to the user.
    """

    def __init__(
        self,
        target_now: Callable[[], Target],
        socket: Path | None,
        note: str = "",
    ) -> None:
        self._target_now = target_now
        self._socket = socket
        self._note = note
        self._url = ""
        self._view_values: Mapping[str, object] = {}
        self._daemon: DaemonView | None = None
        self._wanted, self._keys = SeriesFilter(OF_NODES), SeriesKeys()

    @property
    def title(self) -> str:
        """The node's name, or else its address."""
        if self._daemon is not None and self._daemon.node:
            return self._daemon.node
        return urlsplit(self._url).netloc

    @property
    def links(self) -> Links:
        """The daemon's HTML page, and its log folder."""
        logs = "" if self._daemon is None else str(RunFolder(Path(self._daemon.run_dir)).logs)
        page = f"{self._url}/" if self._url else ""
        metrics = f"{page}metrics" if page else ""
        links = self._view_values.get("links")
        known = links if isinstance(links, dict) else {}
        further = {name: str(known.get(name, "")) for name in ("prometheus", "grafana")}
        return Links(page, metrics, logs=logs, note=self._note, **further)

    def past(self) -> Sequence[LiveReading]:
        """The last ten minutes of its devices; empty if the daemon does not report them."""
        try:
            text = fetch(self._target_now(), "/recent.json", _DEADLINE_SECONDS)
            return tuple(readings_of(parse_foreign(text)))
        except (RefusedError, ValueError, LookupError, TypeError, AttributeError):
            return ()

    def earlier(self) -> LiveReading | None:
        """None: a daemon keeps no complete past reading."""
        return None

    def read(self) -> LiveReading:
        """The page as it is now.

        Raises:
            DisaggError: Nothing answers, another program does, or access is denied.
        """
        target = self._target_now()
        self._url = target.url
        text = fetch(target, "/metrics", _DEADLINE_SECONDS)
        series = find(text, self._wanted, self._keys, "disagg-node")
        if "disagg_build_info" not in series:
            raise ForeignPageError(
                f"{target.url} is no disagg-node: another program answers there; "
                "--url says where yours is"
            )
        self._view_values = _view_json(target)
        reading = replace(reading_of(series, time.time()), verdicts=verdicts_of(self._view_values))
        if self._socket is None:
            return reading
        try:
            workers, self._daemon = _status(self._socket)
        except DisaggError:
            # The page has the same workers with fewer details.
            return reading
        folder = RunFolder(Path(self._daemon.run_dir))
        views = {worker.worker: worker for worker in workers}
        now = reading.at_seconds
        more = (_with_status(each, views.get(each.worker), folder, now) for each in reading.workers)
        return replace(reading, workers=tuple(more))


def _view_json(target: Target) -> Mapping[str, object]:
    """The content of the daemon's `/view.json`; empty if it has none."""
    try:
        content = parse_foreign(fetch(target, "/view.json", _DEADLINE_SECONDS))
    except (RefusedError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _status(socket: Path) -> tuple[list[WorkerView], DaemonView]:
    replies = list(ask(socket, new_request(DaemonStatus()), _DEADLINE_SECONDS))
    if replies[-1].daemon is None:
        raise DisaggError("; ".join((replies[-1].text, *replies[-1].problems)))
    return [each.worker for each in replies if each.worker is not None], replies[-1].daemon


def _with_status(
    reading: WorkerReading, view: WorkerView | None, folder: RunFolder, now: float
) -> WorkerReading:
    if view is None:
        return reading
    return replace(
        reading,
        since_timestamp=now - view.state_seconds,
        deadline_timestamp=None if view.deadline_seconds is None else now + view.deadline_seconds,
        pid=view.pid,
        reason=view.reason,
        log=view.log_path or str(folder.log(view.worker)),
    )
