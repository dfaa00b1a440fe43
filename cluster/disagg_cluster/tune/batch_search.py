"""Which batch to time next so that the largest within the inter-token target is known soonest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.tune.probed import GRID_STEP, TimedSteps
from disagg_exporter.capacity.curves.limits import find_batch, growing
from disagg_exporter.model import DecodeLimit

_OPENING_RATIO = 4.0
_NEIGHBOURS = GRID_STEP * 1.001


@dataclass(frozen=True, slots=True)
class BatchEstimate:
    """The batch that just meets the target, as `find_batch` reads it.

    It lies between two batches that were timed: `quick` met the target, `slow` did not. Either is
    None where no such batch was timed.
    """

    limit: DecodeLimit | None
    quick: int | None
    slow: int | None

    @property
    def requests(self) -> int | None:
        """The largest whole batch within the target that is sure; None where none is."""
        if self.quick is None:
            return None
        known = self.limit.requests if self.limit else None
        if known is None:
            return self.quick
        most = self.quick if self.slow is None else math.floor(known)
        return max(self.quick, most) if self.slow is None or most < self.slow else self.quick


def batch_estimate(probed: TimedSteps, target_seconds: float) -> BatchEstimate:
    """Return what is known of the batch; between the two that were timed it is interpolated."""
    if not probed.probes:
        return BatchEstimate(None, None, None)
    curve = growing(probed.points)
    quick = [round(point.size) for point in curve if point.seconds <= target_seconds]
    slow = [round(point.size) for point in curve if point.seconds > target_seconds]
    return BatchEstimate(
        find_batch(probed.points, target_seconds),
        max(quick, default=None),
        min(slow, default=None),
    )


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """Chooses batches to time: four times as many until one is too slow, then halves the gap.

    It ends with two neighbours of the grid on either side of the target, or where all of the grid
    is on one.

    Attributes:
        grid: Batches that can be timed, rising.
        target_seconds: From token to token.
        most_probes: More are never made.
    """

    grid: tuple[int, ...]
    target_seconds: float
    most_probes: int

    def next_size(self, probed: TimedSteps) -> int | None:
        """Return the next batch to time; None when the search has ended."""
        if len(probed.probes) >= self.most_probes:
            return None
        if not probed.probes:
            return self.grid[0]
        found = batch_estimate(probed, self.target_seconds)
        if found.quick is None:
            return None
        if found.slow is None:
            larger = [each for each in self.grid if each > found.quick]
            wanted = found.quick * _OPENING_RATIO
            near = [each for each in larger if each <= wanted]
            return max(near, default=min(larger, default=None))
        return self._between(found.quick, found.slow, probed)

    def _between(self, quick: int, slow: int, probed: TimedSteps) -> int | None:
        if slow <= quick * _NEIGHBOURS:
            return None
        free = [each for each in self.grid if quick < each < slow and each not in probed.sizes]
        middle = math.sqrt(quick * slow)
        return min(free, key=lambda each: abs(math.log(each / middle)), default=None)
