"""One load over time, evenly spaced, with gaps that stay gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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


def load_series(
    times_seconds: Sequence[float] | Floats, values: Sequence[float] | Floats, step_seconds: float
) -> LoadSeries:
    """Put samples into steps, in whatever order they come.

    A step takes the mean of its samples. What is no load (NaN, infinite, negative) is left out, and
    a step without samples is a gap. Steps lie on multiples of `step_seconds`, so that the series of
    one clock lie beside each other.
    """
    if not step_seconds > 0:
        raise ValueError(f"a step of {step_seconds} s")
    times = np.asarray(times_seconds, dtype=np.float64)
    loads = np.asarray(values, dtype=np.float64)
    sound = np.isfinite(times) & np.isfinite(loads) & (loads >= 0)
    if not sound.any():
        return LoadSeries(0.0, step_seconds, np.empty(0))
    # What a scraper calls 59.9999 s is the step at 60 s.
    steps = np.floor(times[sound] / step_seconds + 1e-6).astype(np.int64)
    first = int(steps.min())
    steps -= first
    length = int(steps.max()) + 1
    counts = np.bincount(steps, minlength=length)
    sums = np.bincount(steps, weights=loads[sound], minlength=length)
    means = np.full(length, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return LoadSeries(first * step_seconds, step_seconds, means)
