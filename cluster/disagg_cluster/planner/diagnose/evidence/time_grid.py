"""Samples of many series on one time grid: increases of counters, values of gauges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from disagg_cluster.planner.diagnose.evidence.series_window import (
    Floats,
    ScrapedSeries,
    SeriesWindow,
)

# Bounds of the grid's step; series scraped more or less often are put on the nearest.
_LEAST_STEP_SECONDS, _MOST_STEP_SECONDS = 1.0, 60.0
# Samples further apart than this many steps leave a gap.
_GAP_STEPS = 3.0
# A counter that gains more in a second, or a larger gauge, is rejected.
_ABSURD = 1e15


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """Bins of equal length that end at `now_seconds`."""

    now_seconds: float
    step_seconds: float
    bins: int

    @property
    def edges_seconds(self) -> Floats:
        """The start of the first bin and the ends of all bins."""
        back = np.arange(self.bins, -1, -1, dtype=np.float64)
        return self.now_seconds - back * self.step_seconds

    @property
    def gap_seconds(self) -> float:
        """Samples further apart than this leave a gap."""
        return _GAP_STEPS * self.step_seconds


def grid_of(window: SeriesWindow, family: str) -> TimeGrid | None:
    """The time grid of a window: a bin for each scrape of a family.

    It ends at the last sample no later than the window's end; None without two samples.
    """
    pauses, latest = [], []
    for series in window.of(family):
        times = series.times_seconds[series.times_seconds <= window.now_seconds]
        if len(times) >= 2:
            pauses.append(float(np.median(np.diff(times))))
            latest.append(float(times[-1]))
    if not pauses:
        return None
    step_seconds = min(max(float(np.median(pauses)), _LEAST_STEP_SECONDS), _MOST_STEP_SECONDS)
    now_seconds = max(latest)
    bins = int((now_seconds - window.begin_seconds) / step_seconds)
    return TimeGrid(now_seconds, step_seconds, bins) if bins >= 1 else None


def late_seconds(window: SeriesWindow, grid: TimeGrid, *families: str) -> float:
    """Age of the oldest last sample of any live node at a grid's end: before that, all are known.

    A node that was not scraped within a bin of that end counts as gone.
    """
    pauses = [
        grid.now_seconds - series.times_seconds.item(-1)
        for family in families
        for series in window.of(family)
        if len(series.times_seconds)
    ]
    return max((each for each in pauses if 0 <= each < grid.step_seconds), default=0.0)


@dataclass(slots=True)
class SampleBatch:
    """Puts rows of samples on a grid; rows with the same scrape times are handled together.

    Bins of counters end with each row's own last sample, so that the newest is known for all; or
    all end `late_seconds` before the grid does, for values that are compared between nodes.
    """

    grid: TimeGrid
    late_seconds: float | None = None
    rejected: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def gains(self, rows: Sequence[ScrapedSeries]) -> Floats:
        """The increase of each counter in each bin; NaN where unknown.

        A counter that falls has restarted from zero.
        """
        found = np.full((len(rows), self.grid.bins), np.nan)
        for numbers, times, values in self._alike(rows):
            gained = np.diff(values, axis=1)
            gained = np.where(gained < 0, values[:, 1:], gained)
            pauses = np.maximum(np.diff(times), 1e-9)
            absurd = gained > _ABSURD * pauses
            if absurd.any():
                self.rejected["counts that no engine reaches"] += int(absurd.sum())
                gained = np.where(absurd, np.nan, gained)
            total = np.zeros(values.shape)
            np.cumsum(gained, axis=1, out=total[:, 1:])
            found[numbers] = np.diff(self._at_edges(times, total), axis=1)
        return np.asarray(np.maximum(found, 0.0))

    def levels(self, rows: Sequence[ScrapedSeries]) -> Floats:
        """The last value of each gauge at the end of each bin; NaN if older than a gap."""
        found = np.full((len(rows), self.grid.bins), np.nan)
        ends = self.grid.edges_seconds[1:]
        for numbers, times, values in self._alike(rows):
            last = np.searchsorted(times, ends + 1e-6, side="right") - 1
            known = (last >= 0) & (ends - times[np.maximum(last, 0)] <= self.grid.gap_seconds)
            found[numbers] = np.where(known, values[:, np.maximum(last, 0)], np.nan)
        return found

    def _at_edges(self, times: Floats, totals: Floats) -> Floats:
        """Totals at the edges of the grid, interpolated between samples.

        Nodes are scraped one after the other, so samples fall between the edges.
        """
        edges = self.grid.edges_seconds
        if len(times) < 2:
            return np.full((len(totals), len(edges)), np.nan)
        late_seconds = self.late_seconds
        if late_seconds is None:
            late_seconds = self.grid.now_seconds - times[-1]
        if abs(late_seconds) < self.grid.step_seconds:
            edges = edges - late_seconds
        right = np.clip(np.searchsorted(times, edges), 1, len(times) - 1)
        left = right - 1
        pauses = np.maximum(times[right] - times[left], 1e-9)
        part = (edges - times[left]) / pauses
        slack = 0.1 * self.grid.step_seconds
        known = (
            (pauses <= self.grid.gap_seconds)
            & (edges >= times[0] - slack)
            & (edges <= times[-1] + slack)
        )
        at = totals[:, left] + (totals[:, right] - totals[:, left]) * part
        return np.where(known, at, np.nan)

    def _alike(self, rows: Sequence[ScrapedSeries]) -> list[tuple[list[int], Floats, Floats]]:
        """Rows with the same sample times, stacked: their numbers, times and values."""
        groups: dict[tuple[int, float, float], list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            times = row.times_seconds
            if len(times):
                groups[len(times), times.item(0), times.item(-1)].append(number)
        found = []
        for numbers in groups.values():
            values = _stacked([rows[number].values for number in numbers])
            times = rows[numbers[0]].times_seconds
            # No comparison holds for what is no number.
            sound = ((values >= 0) & (values < _ABSURD)).all(axis=1)
            if len(numbers) > 1:
                all_times = _stacked([rows[number].times_seconds for number in numbers])
                sound &= (all_times == times).all(axis=1)
            sound &= bool((times[1:] > times[:-1]).all())
            if sound.all():
                found.append((numbers, times, values))
                continue
            if sound.any():
                kept = np.flatnonzero(sound)
                found.append(([numbers[each] for each in kept], times, values[kept]))
            for each in np.flatnonzero(~sound):
                found += self._single(numbers[each], rows[numbers[each]])
        return found

    def _single(self, number: int, row: ScrapedSeries) -> list[tuple[list[int], Floats, Floats]]:
        """A row by itself, without its impossible samples."""
        times, first = np.unique(row.times_seconds, return_index=True)
        values = row.values[first]
        with np.errstate(invalid="ignore"):
            sound = np.isfinite(values) & np.isfinite(times) & (values >= 0) & (values < _ABSURD)
        if not sound.all():
            self.rejected["values that are negative, infinite or no number"] += int((~sound).sum())
        if not sound.any():
            return []
        return [([number], times[sound], values[None, sound])]


def _stacked(rows: Sequence[Floats]) -> Floats:
    """Equally long rows as a matrix: `np.stack` handles each by itself."""
    return np.concatenate(rows).reshape(len(rows), -1)
