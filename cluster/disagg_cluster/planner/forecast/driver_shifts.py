"""Recent level shifts of requests, their lengths and the cache: before, after, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import Floats, LoadSeries, quotient

WINDOW_SECONDS = 86_400.0
LEAST_CHANGE = 0.15
"""Smaller relative changes of a driver are not reported."""
_BIN_SECONDS = 300.0
_LEAST_BINS = 3
_LEAST_DEVIATIONS = 4.0


@dataclass(frozen=True, slots=True)
class DriverShift:
    """A load driver and its levels before and after `since_seconds`, both above 0."""

    name: str
    unit: str
    before: float
    after: float
    since_seconds: float

    @property
    def factor(self) -> float:
        """Level after divided by level before."""
        return self.after / self.before


def driver_shifts(
    drivers: Mapping[str, tuple[str, LoadSeries, LoadSeries | None]],
) -> tuple[DriverShift, ...]:
    """The latest shift of each driver within a window, largest first; unchanged ones are left out.

    A shift lies where two levels fit best (least squares of logarithms). The search is repeated on
    what follows it, so that the latest shift that stands out of the noise is returned.

    Args:
        drivers: By name: the unit, a load, and an optional divisor. A prompt's length is prompt
            tokens divided by requests.
    """
    found = []
    for name, (unit, load, per) in drivers.items():
        start, levels = _levels(load, per)
        shift = _latest(levels)
        if shift is not None:
            split, before, after = shift
            since = start + split * _BIN_SECONDS
            found.append(DriverShift(name, unit, before, after, since))
    return tuple(sorted(found, key=lambda each: -abs(np.log(each.factor))))


def _levels(load: LoadSeries, per: LoadSeries | None) -> tuple[float, Floats]:
    """When the first bin begins, and the mean of each bin; NaN where nothing is known."""
    start = load.end_seconds - min(WINDOW_SECONDS, len(load.values) * load.step_seconds)
    count = max(1, int((load.end_seconds - start) // _BIN_SECONDS))
    start = load.end_seconds - count * _BIN_SECONDS
    loads = load.binned(start, _BIN_SECONDS, count)
    if per is None:
        return start, loads
    return start, quotient(loads, per.binned(start, _BIN_SECONDS, count))


def _latest(levels: Floats) -> tuple[int, float, float] | None:
    """The bin of the latest shift, the level before it and the level after it.

    None if there is no load now, as then the level after the last shift has ended as well.
    """
    resting = levels[np.isfinite(levels)][-_LEAST_BINS:] == 0
    known = np.flatnonzero(np.isfinite(levels) & (levels > 0))
    if resting.all() or len(known) < 2 * _LEAST_BINS:
        return None
    values = np.log(levels[known])
    found: tuple[int, float, float] | None = None
    first = 0
    while (split := _split(values[first:])) is not None:
        at = first + split
        before, after = float(values[first:at].mean()), float(values[at:].mean())
        found = (int(known[at]), float(np.exp(before)), float(np.exp(after)))
        first = at
    return found


def _split(values: Floats) -> int | None:
    """Index where two levels fit best, if they differ by more than noise and `LEAST_CHANGE`."""
    length = len(values)
    if length < 2 * _LEAST_BINS:
        return None
    sums = np.cumsum(values)
    left = np.arange(1, length)
    means_left = sums[:-1] / left
    means_right = (sums[-1] - sums[:-1]) / (length - left)
    gain = left * (length - left) / length * (means_right - means_left) ** 2
    gain[: _LEAST_BINS - 1] = gain[length - _LEAST_BINS :] = 0.0
    split = int(np.argmax(gain)) + 1
    change = means_right[split - 1] - means_left[split - 1]
    noise = float(np.median(np.abs(np.diff(values)))) / (0.6745 * np.sqrt(2)) + 1e-9
    deviations = abs(change) / (noise * np.sqrt(1 / split + 1 / (length - split)))
    if deviations < _LEAST_DEVIATIONS or abs(change) < np.log1p(LEAST_CHANGE):
        return None
    return split
