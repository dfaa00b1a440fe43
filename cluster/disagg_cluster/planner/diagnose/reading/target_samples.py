"""The samples of all series of one scrape target: a row for each series, with shared times."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats, ScrapedSeries
from disagg_cluster.prometheus.prometheus_api import Samples

_NAME = "__name__"
_SeriesId = frozenset[tuple[str, str]]


class TargetSamples:
    """The kept samples of one target; NaN where a series had no sample in a scrape."""

    def __init__(self) -> None:
        self._times = np.empty(0)
        self._values = np.empty((0, 0))
        self._rows: dict[_SeriesId, int] = {}
        self._series: list[tuple[str, Mapping[str, str]]] = []

    def __len__(self) -> int:
        return len(self._series)

    @property
    def newest_seconds(self) -> float:
        """The time of the newest sample; minus infinity without any."""
        return float(self._times[-1]) if len(self._times) else -np.inf

    @property
    def oldest_seconds(self) -> float:
        """The time of the oldest sample; infinity without any."""
        return float(self._times[0]) if len(self._times) else np.inf

    def add(self, found: Sequence[Samples]) -> None:
        """Add samples; known ones may be repeated."""
        together: dict[tuple[float, ...], tuple[list[int], list[tuple[float, ...]]]] = defaultdict(
            lambda: ([], [])
        )
        for each in found:
            if each.values:
                times, values = zip(*each.values, strict=True)
                rows, samples = together[times]
                rows.append(self._row(each.labels))
                samples.append(values)
        if not together:
            return
        self._make_room(np.unique(np.concatenate([np.array(times) for times in together])))
        for times, (rows, samples) in together.items():
            columns = np.searchsorted(self._times, np.array(times))
            self._values[np.ix_(np.array(rows), columns)] = samples

    def forget(self, before_seconds: float) -> None:
        """Drop older samples, and series left without any."""
        first = int(np.searchsorted(self._times, before_seconds))
        if first == 0:
            return
        self._times, values = self._times[first:], self._values[:, first:]
        alive: Flags = np.asarray(np.isfinite(values).any(axis=1))
        self._values = values[alive]
        self._series = [each for each, kept in zip(self._series, alive, strict=True) if kept]
        places = np.cumsum(alive) - 1
        self._rows = {key: int(places[row]) for key, row in self._rows.items() if alive[row]}

    def series(self) -> Iterator[tuple[str, ScrapedSeries]]:
        """Yield each series with its family; series without a gap share their times."""
        whole: Flags = np.asarray(np.isfinite(self._values).all(axis=1))
        for row, (family, labels) in enumerate(self._series):
            values = self._values[row]
            if whole[row]:
                yield family, ScrapedSeries(labels, self._times, values)
            elif len(at := np.flatnonzero(np.isfinite(values))):
                yield family, ScrapedSeries(labels, self._times[at], values[at])

    def _row(self, named: Mapping[str, str]) -> int:
        key = frozenset(named.items())
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._series)
            # Thousands of series share names and values of labels.
            labels = {sys.intern(name): sys.intern(value) for name, value in named.items()}
            self._series.append((labels.pop(_NAME, ""), labels))
        return row

    def _make_room(self, times: Floats) -> None:
        """Extend the matrix to all series and these times."""
        union = np.union1d(self._times, times)
        values = np.full((len(self._series), len(union)), np.nan)
        rows, _ = self._values.shape
        values[:rows, np.searchsorted(union, self._times)] = self._values
        self._times, self._values = union, values
