"""What moved of late: requests, their lengths, the cache; from what to what, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import Floats, LoadSeries

WINDOW_SECONDS = 86_400.0
LEAST_CHANGE = 0.15
"""A driver that changed less is not spoken of."""
_BIN_SECONDS = 300.0
_LEAST_BINS = 3
_LEAST_DEVIATIONS = 4.0


@dataclass(frozen=True, slots=True)
class DriverShift:
    """A driver of load whose level changed: before `since_seconds`, and after."""

    name: str
    unit: str
    before: float
    after: float
    since_seconds: float

    @property
    def factor(self) -> float:
        """How many times as much it became; infinite from nothing."""
        return self.after / self.before if self.before > 0 else np.inf


def driver_shifts(
    drivers: Mapping[str, tuple[str, LoadSeries, LoadSeries | None]],
    window_seconds: float = WINDOW_SECONDS,
) -> tuple[DriverShift, ...]:
    """The latest shift of each driver in a window, the largest first; those that stayed are not in.

    The moment is where two levels fit best (least squares of logarithms), looked for again in what
    came after, so that it is the latest that stands out of the noise.

    Args:
        drivers: By name the unit, a load, and what it is divided by, if anything: a prompt's
            length is prompt tokens over requests.
        window_seconds: How far back.
    """
    found = []
    for name, (unit, load, per) in drivers.items():
        start, levels = _levels(load, per, window_seconds)
        shift = _latest(levels)
        if shift is not None:
            split, before, after = shift
            since = start + split * _BIN_SECONDS
            found.append(DriverShift(name, unit, before, after, since))
    return tuple(sorted(found, key=lambda each: -abs(np.log(each.factor))))


def _levels(load: LoadSeries, per: LoadSeries | None, window: float) -> tuple[float, Floats]:
    """Means of bins, and when the first begins; NaN where nothing is known."""
    start = load.end_seconds - min(window, len(load.values) * load.step_seconds)
    count = max(1, int((load.end_seconds - start) // _BIN_SECONDS))
    start = load.end_seconds - count * _BIN_SECONDS
    above = _binned(load, start, count)
    if per is None:
        return start, above
    below = _binned(per, start, count)
    found = np.full(count, np.nan)
    np.divide(above, below, out=found, where=below > 0)
    return start, found


def _binned(series: LoadSeries, start: float, count: int) -> Floats:
    at = series.start_seconds + series.step_seconds * (np.arange(len(series.values)) + 0.5)
    bins = np.floor((at - start) / _BIN_SECONDS).astype(np.int64)
    inside = (bins >= 0) & (bins < count) & np.isfinite(series.values)
    counts = np.bincount(bins[inside], minlength=count)
    sums = np.bincount(bins[inside], weights=series.values[inside], minlength=count)
    means = np.full(count, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _latest(levels: Floats) -> tuple[int, float, float] | None:
    """The bin of the last shift, the level before it and after it."""
    known = np.flatnonzero(np.isfinite(levels) & (levels > 0))
    if len(known) < 2 * _LEAST_BINS:
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
    """Where two levels fit best, if they differ by more than chance and by enough to matter."""
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
