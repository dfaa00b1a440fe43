"""Exported series of a time window as they were scraped: all the input of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ScrapedSeries:
    """One series: its labels without `__name__`, and its samples in order of Unix time."""

    labels: Mapping[str, str]
    times_seconds: Floats
    values: Floats


def joined(gauges: Sequence[ScrapedSeries]) -> ScrapedSeries:
    """One gauge from the series that reported it in turn, with the labels of the last.

    A pod that is replaced, or an engine's new role, goes on under other labels: its last values
    before that are out of date, and no part of a sum.
    """
    if len(gauges) == 1:
        return gauges[0]
    times = np.concatenate([each.times_seconds for each in gauges])
    order = np.argsort(times, kind="stable")
    values = np.concatenate([each.values for each in gauges])
    return ScrapedSeries(gauges[-1].labels, times[order], values[order])


@dataclass(frozen=True, slots=True, eq=False)
class SeriesWindow:
    """Series by family, with the labels that a scrape adds (`cluster`, `node`, `instance`).

    A histogram is three families, as exported: `_bucket` (label `le`), `_sum` and `_count`.
    A family that nothing exports is absent, and so is its evidence.
    """

    begin_seconds: float
    now_seconds: float
    families: Mapping[str, tuple[ScrapedSeries, ...]] = field(default_factory=dict)

    def of(self, family: str) -> tuple[ScrapedSeries, ...]:
        """The series of a family; none if it is missing."""
        return self.families.get(family, ())
