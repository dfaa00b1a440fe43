"""The load of every model over a sliding window; each round reads only new steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.history.prometheus_history import NoLoadYetError

OVERLAP_STEPS = 10
"""Steps that are read again each round, because samples may arrive late."""
LATE_SECONDS = 86_400.0
"""Unknown steps are read again for this long: a queue of samples may still drain."""


class HistoryReader(Protocol):
    """Interface for reading a history."""

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        """Read the load of every model in a span."""


class RollingHistory:
    """The load of the last `window_seconds`, updated by each `read`.

    A failed read keeps what was known; the next one reads what both have missed. If the clock was
    set back since, the whole window is read again.

    Args:
        reader: Reads a span.
        window_seconds: Length of the window.
        step_seconds: Distance between values.
        cluster: Only this cluster; all clusters if None.
    """

    def __init__(
        self,
        reader: HistoryReader,
        window_seconds: float,
        step_seconds: float,
        cluster: str | None = None,
    ) -> None:
        self._reader = reader
        self._window_seconds = window_seconds
        self._step_seconds = step_seconds
        self._cluster = cluster
        self._known: dict[LoadKey, LoadHistory] = {}
        self._end_seconds: float | None = None

    def read(self, now_seconds: float) -> list[LoadHistory]:
        """Read the load of each model up to now.

        Models without a known step in the window are left out; a model that is gone has a gap.
        """
        begin = now_seconds - self._window_seconds
        overlap = OVERLAP_STEPS * self._step_seconds
        since = begin
        if self._end_seconds is not None and self._end_seconds <= now_seconds:
            read_until = self._end_seconds
            since = max(begin, min(read_until, self._known_until(read_until)) - overlap)
        request = HistoryRequest(since, now_seconds, self._step_seconds, self._cluster)
        new = {each.key: each for each in self._read(request)}
        window = HistoryRequest(begin, now_seconds, self._step_seconds)
        joined = {}
        for key in {**self._known, **new}:
            parts = [each for each in (self._known.get(key), new.get(key)) if each is not None]
            joined[key] = _joined(parts, window)
        self._known = {
            key: each
            for key, each in sorted(joined.items())
            if each.prompt_tokens.known or each.output_tokens.known
        }
        self._end_seconds = now_seconds
        return list(self._known.values())

    def _read(self, request: HistoryRequest) -> list[LoadHistory]:
        try:
            return self._reader.read(request)
        except NoLoadYetError:
            # New nodes without users: there is nothing to forecast from, and nothing has failed.
            return []

    def _known_until(self, read_until: float) -> float:
        """End of the newest known step of any model, at most `LATE_SECONDS` before `read_until`."""
        ends = [
            each.prompt_tokens.start_seconds + (int(known[-1]) + 1) * self._step_seconds
            for each in self._known.values()
            if len(known := np.flatnonzero(np.isfinite(each.prompt_tokens.values)))
        ]
        return max(*ends, read_until - LATE_SECONDS) if ends else read_until


def _joined(parts: Sequence[LoadHistory], window: HistoryRequest) -> LoadHistory:
    """Join the older and the newer part over the window; the newer part prevails."""
    names = [each.name for each in fields(LoadHistory) if each.name != "key"]
    found: dict[str, Any] = {}
    for name in names:
        values = np.full(window.steps, np.nan)
        present = False
        for part in parts:
            series = getattr(part, name)
            if not isinstance(series, LoadSeries):
                continue
            present = True
            _put(values, window, series)
        found[name] = (
            LoadSeries(window.first_seconds, window.step_seconds, values) if present else None
        )
    return replace(parts[-1], **found)


def _put(values: np.typing.NDArray[np.float64], window: HistoryRequest, series: LoadSeries) -> None:
    steps = round((series.start_seconds - window.first_seconds) / window.step_seconds)
    at = steps + np.arange(len(series.values))
    inside = (at >= 0) & (at < len(values))
    values[at[inside]] = series.values[inside]
