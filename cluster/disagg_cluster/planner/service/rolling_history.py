"""The load of every model over a window that moves on: each round reads only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries

OVERLAP_STEPS = 10
"""So many steps that were read before are read again: samples come late."""
LATE_SECONDS = 86_400.0
"""Steps of which nothing was known are read again for so long: a queue of samples is worked off."""


class HistoryReader(Protocol):
    """What a history is read with."""

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        """Read the load of every model in a span."""


class RollingHistory:
    """What is known of the last `window_seconds`, brought up to date by each `read`.

    A round that fails leaves what was known; the next reads what both have missed.

    Args:
        reader: Reads a span.
        window_seconds: How far back.
        step_seconds: From one value to the next.
        cluster: Only this one; all of them if None.
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
        """The load of each model up to now.

        A model without a known step in the window is left out, and one that is gone has a gap.
        """
        begin = now_seconds - self._window_seconds
        overlap = OVERLAP_STEPS * self._step_seconds
        since = begin
        if self._end_seconds is not None:
            read_until = min(self._end_seconds, now_seconds)
            since = max(begin, min(read_until, self._known_until(read_until)) - overlap)
        request = HistoryRequest(since, now_seconds, self._step_seconds, self._cluster)
        new = {each.key: each for each in self._reader.read(request)}
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

    def _known_until(self, read_until: float) -> float:
        """When the newest known step of any model ends; no longer ago than samples may be late."""
        ends = [
            each.prompt_tokens.start_seconds + (int(known[-1]) + 1) * self._step_seconds
            for each in self._known.values()
            if len(known := np.flatnonzero(np.isfinite(each.prompt_tokens.values)))
        ]
        return max(*ends, read_until - LATE_SECONDS) if ends else read_until


def _joined(parts: Sequence[LoadHistory], window: HistoryRequest) -> LoadHistory:
    """The older and the newer part as one that fills the window; the newer part prevails."""
    names = [each.name for each in fields(LoadHistory) if each.name != "key"]
    found: dict[str, Any] = {}
    for name in names:
        values = np.full(window.steps, np.nan)
        told = False
        for part in parts:
            series = getattr(part, name)
            if not isinstance(series, LoadSeries):
                continue
            told = True
            _put(values, window, series)
        found[name] = (
            LoadSeries(window.first_seconds, window.step_seconds, values) if told else None
        )
    return replace(parts[-1], **found)


def _put(values: np.typing.NDArray[np.float64], window: HistoryRequest, series: LoadSeries) -> None:
    steps = round((series.start_seconds - window.first_seconds) / window.step_seconds)
    at = steps + np.arange(len(series.values))
    inside = (at >= 0) & (at < len(values))
    values[at[inside]] = series.values[inside]
