"""One load over time, evenly spaced, with gaps that stay gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.errors import DisaggError

Floats = NDArray[np.float64]
MOST_STEPS = 5_000_000
"""The longest series that is made: nine years of minutes, 57 days of seconds."""


class LoadSpanError(DisaggError):
    """Times between which lie too many steps, or none; the text says how many."""

    exit_code = 2


@dataclass(frozen=True, slots=True, eq=False)
class LoadSeries:
    """Values a step apart; NaN where nothing is known.

    `start_seconds` is the time of the first value, and a value says what came in the step that
    begins there, as a rate a second.
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
        """How many steps have a value."""
        return int(np.isfinite(self.values).sum())

    @property
    def silent_seconds(self) -> float:
        """How long before the end the last known step ended; infinite if there is none."""
        known = np.flatnonzero(np.isfinite(self.values))
        if not len(known):
            return np.inf
        return float((len(self.values) - 1 - known[-1]) * self.step_seconds)


def load_series(
    times_seconds: Sequence[float] | Floats, values: Sequence[float] | Floats, step_seconds: float
) -> LoadSeries:
    """Put samples into steps, in whatever order they come.

    A step takes the mean of its samples. What is no load (NaN, infinite, negative) leaves a gap, as
    a step without samples does, at the ends too, and where there is no load at all. Steps lie on
    multiples of `step_seconds`, so that the series of one clock lie beside each other.

    Raises:
        LoadSpanError: From the first time to the last are more than `MOST_STEPS` steps.
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
    # What a scraper calls 59.9999 s is the step at 60 s.
    with np.errstate(over="ignore"):
        places = np.floor(times / step_seconds + 1e-6)
    first = float(places.min())
    length = checked_span(float(places.max()) - first + 1.0, step_seconds)
    steps = (places[sound] - first).astype(np.int64)
    counts = np.bincount(steps, minlength=length)
    sums = np.bincount(steps, weights=loads[sound], minlength=length)
    means = np.full(length, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return LoadSeries(first * step_seconds, step_seconds, means)


def checked_span(steps: float, step_seconds: float) -> int:
    """A number of steps that a series may have; raises `LoadSpanError` if it may not."""
    if not steps <= MOST_STEPS:
        raise LoadSpanError(
            f"from the first time to the last are {steps:.3g} steps of {step_seconds:g} s, at most "
            f"{MOST_STEPS} are read: is one time far from the others, or in another unit?"
        )
    return int(steps)
