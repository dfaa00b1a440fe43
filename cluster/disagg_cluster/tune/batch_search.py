"""Selects the next batch to time, to find the largest one within the inter-token target."""

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
    """The batch that just meets the target, as `find_batch` computes it.

    It lies between two timed batches: `quick` met the target, `slow` did not. Either is None if no
    such batch was timed.
    """

    limit: DecodeLimit | None
    quick: int | None
    slow: int | None

    @property
    def requests(self) -> int | None:
        """The largest batch that is certain to meet the target; None if none is."""
        if self.quick is None:
            return None
        known = self.limit.requests if self.limit else None
        if known is None:
            return self.quick
        most = self.quick if self.slow is None else math.floor(known)
        return max(self.quick, most) if self.slow is None or most < self.slow else self.quick


def batch_estimate(probed: TimedSteps, target_seconds: float) -> BatchEstimate:
    """Return the current estimate of the batch, interpolated between the two timed ones."""
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
    """Selects batches to time: quadruples until one is too slow, then bisects.

    It ends with two neighbouring grid sizes on either side of the target, or if the whole grid is
    on one side.

    Attributes:
        grid: Batches that can be timed, ascending.
        target_seconds: The inter-token target.
        most_probes: Maximum number of probes.
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
        if found.slow <= found.quick * _NEIGHBOURS:
            return None
        return probed.untimed_between(self.grid, found.quick, found.slow)
