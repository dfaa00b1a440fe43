"""What probes have shown: times of steps by their size, on the sizes that the product knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from disagg_exporter.capacity.curves.curve import CLASSES_A_DOUBLING, Curve, Point

GRID_STEP = 2 ** (1 / CLASSES_A_DOUBLING)
"""From one size of the grid to the next: as wide as a size class of the product's curves."""


@dataclass(frozen=True, slots=True)
class SizeProbe:
    """Steps of one size (tokens or requests): how long each took, in seconds.

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
    """All probes of an engine for one length; several of one size count together."""

    probes: tuple[SizeProbe, ...] = ()

    def plus(self, probe: SizeProbe) -> TimedSteps:
        """Return it with one more."""
        return TimedSteps((*self.probes, probe))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Medians by size class, as the product's own curves have them of an engine's steps."""
        curve = Curve()
        for probe in self.probes:
            for seconds in probe.seconds:
                curve.add(probe.size, seconds, 0)
        return curve.points(0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Which sizes were probed, each once, rising."""
        return tuple(sorted({probe.size for probe in self.probes}))

    @property
    def steps(self) -> int:
        """How many steps were timed."""
        return sum(len(probe.seconds) for probe in self.probes)

    @property
    def step_seconds(self) -> float:
        """What all of them took."""
        return sum(sum(probe.seconds) for probe in self.probes)


def size_grid(smallest: int, largest: int) -> tuple[int, ...]:
    """Return sizes a class apart from the smallest to the largest, both included.

    Raises:
        ValueError: They are no range of sizes from 1 up.
    """
    if not 1 <= smallest <= largest:
        raise ValueError(f"no range of sizes: {smallest} to {largest}")
    first = math.ceil(CLASSES_A_DOUBLING * math.log2(smallest))
    last = math.floor(CLASSES_A_DOUBLING * math.log2(largest))
    within = {math.ceil(GRID_STEP**n) for n in range(first, last + 1)}
    return tuple(sorted({smallest, largest, *(n for n in within if smallest < n < largest)}))


def spread_over(grid: Sequence[int], ratio: float) -> tuple[int, ...]:
    """Return sizes of a grid that lie about so many times apart, its ends included."""
    count = max(1, math.ceil(math.log(grid[-1] / grid[0]) / math.log(ratio)))
    wanted = (grid[0] * (grid[-1] / grid[0]) ** (n / count) for n in range(count + 1))
    return tuple(sorted({nearest(grid, size) for size in wanted}))


def nearest(grid: Sequence[int], size: float) -> int:
    """Return the size of a grid that is nearest by ratio."""
    return min(grid, key=lambda each: abs(math.log(each / size)))
