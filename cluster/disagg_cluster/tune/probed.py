"""Results of probes: step times by size, on the exporter's size classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from disagg_exporter.capacity.curves.curve import CLASSES_A_DOUBLING, Curve, Point

GRID_STEP = 2 ** (1 / CLASSES_A_DOUBLING)
"""Ratio of neighbouring grid sizes: one size class of the exporter's curves."""


@dataclass(frozen=True, slots=True)
class SizeProbe:
    """Steps of one size (tokens or requests) and the seconds each took.

    Raises:
        ValueError: There is no step, or one without size or time.
    """

    size: int
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.size < 1 or not self.seconds or not all(0 < s < math.inf for s in self.seconds):
            raise ValueError(f"no probe: size {self.size}, seconds {self.seconds}")


@dataclass(frozen=True)
class TimedSteps:
    """All probes of an engine for one length; those of equal size are combined."""

    probes: tuple[SizeProbe, ...] = ()

    def plus(self, probe: SizeProbe) -> TimedSteps:
        """Return a copy with one more probe."""
        return TimedSteps((*self.probes, probe))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Medians by size class, as in the exporter's curves of an engine's steps."""
        curve = Curve()
        for probe in self.probes:
            for seconds in probe.seconds:
                curve.add(probe.size, seconds, 0)
        return curve.points(0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The probed sizes, ascending."""
        return tuple(sorted({probe.size for probe in self.probes}))

    def untimed_between(self, grid: Sequence[int], low: float, high: float) -> int | None:
        """The untimed grid size nearest to the middle of two, as a ratio; None without any."""
        free = [size for size in grid if low < size < high and size not in self.sizes]
        return nearest(free, math.sqrt(low * high)) if free else None

    @property
    def steps(self) -> int:
        """Number of timed steps."""
        return sum(len(probe.seconds) for probe in self.probes)

    @property
    def step_seconds(self) -> float:
        """Total seconds of all steps."""
        return sum(sum(probe.seconds) for probe in self.probes)


def size_grid(smallest: int, largest: int) -> tuple[int, ...]:
    """Return sizes one class apart from the smallest to the largest, both included.

    Raises:
        ValueError: Not a range of sizes from 1 up.
    """
    if not 1 <= smallest <= largest:
        raise ValueError(f"no range of sizes: {smallest} to {largest}")
    first = math.ceil(CLASSES_A_DOUBLING * math.log2(smallest))
    last = math.floor(CLASSES_A_DOUBLING * math.log2(largest))
    within = {math.ceil(GRID_STEP**n) for n in range(first, last + 1)}
    return tuple(sorted({smallest, largest, *(n for n in within if smallest < n < largest)}))


def spread_over(grid: Sequence[int], ratio: float) -> tuple[int, ...]:
    """Return sizes of a grid about `ratio` times apart, including its ends."""
    count = max(1, math.ceil(math.log(grid[-1] / grid[0]) / math.log(ratio)))
    wanted = (grid[0] * (grid[-1] / grid[0]) ** (n / count) for n in range(count + 1))
    return tuple(sorted({nearest(grid, size) for size in wanted}))


def nearest(grid: Sequence[int], size: float) -> int:
    """Return the grid size with the nearest ratio."""
    return min(grid, key=lambda each: abs(math.log(each / size)))
