"""A load over time, evenly spaced; gaps are preserved, as NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.errors import DisaggError

Floats = NDArray[np.float64]
MOST_STEPS = 5_000_000
"""Longest series: nine years of minutes, 57 days of seconds."""


class LoadSpanError(DisaggError):
    """A time range has too many steps, or none; the text says how many."""

    exit_code = 2


@dataclass(frozen=True, slots=True, eq=False)
class LoadSeries:
    """Evenly spaced values; NaN where nothing is known.

    A value is the mean rate per second in a step; the first step begins at `start_seconds`.
    """

    start_seconds: float
    step_seconds: float
    values: Floats

    @property
    def end_seconds(self) -> float:
        """When the last step ends, and a forecast begins."""
        return self.start_seconds + self.step_seconds * len(self.values)

    @property
    def known(self) -> int:
        """Number of steps with a value."""
        return int(np.isfinite(self.values).sum())

    @property
    def silent_seconds(self) -> float:
        """Time from the end of the last known step to the end; infinite if no step is known."""
        known = np.flatnonzero(np.isfinite(self.values))
        if not len(known):
            return np.inf
        return float((len(self.values) - 1 - known[-1]) * self.step_seconds)

    def binned(self, start_seconds: float, bin_seconds: float, bins: int) -> Floats:
        """Means over bins from then on; a step is in the bin that contains its middle."""
        steps = np.arange(len(self.values)) + 0.5
        middles = self.start_seconds + self.step_seconds * steps
        places = np.floor((middles - start_seconds) / bin_seconds).astype(np.int64)
        inside = (places >= 0) & (places < bins) & np.isfinite(self.values)
        return _means(places[inside], self.values[inside], bins)


def load_series(
    times_seconds: Sequence[float] | Floats, values: Sequence[float] | Floats, step_seconds: float
) -> LoadSeries:
    """Put samples, in any order, into steps.

    A step's value is the mean of its samples. Invalid values (NaN, infinite, negative) leave a gap,
    as does a step without samples, even at the ends or if all values are invalid. Steps lie on
    multiples of `step_seconds`, so that series on one time grid align.

    Raises:
        LoadSpanError: The times span more than `MOST_STEPS` steps.
    """
    if not 0 < step_seconds < np.inf:
        raise ValueError(f"a step of {step_seconds} s")
    times = np.asarray(times_seconds, dtype=np.float64)
    loads = np.asarray(values, dtype=np.float64)
    timed = np.isfinite(times)
    times, loads = times[timed], loads[timed]
    sound = np.isfinite(loads) & (loads >= 0)
    if not len(times):
        return LoadSeries(0.0, step_seconds, np.empty(0))
    # A scraper's 59.9999 s belongs to the step at 60 s.
    with np.errstate(over="ignore"):
        places = np.floor(times / step_seconds + 1e-6)
    first = float(places.min())
    length = checked_span(float(places.max()) - first + 1.0, step_seconds)
    steps = (places[sound] - first).astype(np.int64)
    return LoadSeries(first * step_seconds, step_seconds, _means(steps, loads[sound], length))


def _means(places: NDArray[np.int64], values: Floats, length: int) -> Floats:
    """The mean of the values at each place; NaN without any."""
    sums = np.bincount(places, weights=values, minlength=length)
    return quotient(sums, np.bincount(places, minlength=length))


def quotient(above: NDArray[np.number], below: NDArray[np.number]) -> Floats:
    """`above / below`; NaN where `below` is not positive, or next to nothing."""
    found = np.full(above.shape, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        np.divide(above, below, out=found, where=below > 0)
    return np.where(np.isfinite(found), found, np.nan)


def checked_span(
    steps: float,
    step_seconds: float,
    way_out: str = "is one time far from the others, or in another unit?",
) -> int:
    """Return the number of steps; raise `LoadSpanError` if a series may not have so many."""
    if not steps <= MOST_STEPS:
        raise LoadSpanError(
            f"the times span {steps:.3g} steps of {step_seconds:g} s, at most {MOST_STEPS} are "
            f"read: {way_out}"
        )
    return int(steps)
