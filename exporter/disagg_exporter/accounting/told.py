"""What an engine says of itself: steps and step time by kind, over all its processes."""

from __future__ import annotations

from disagg_exporter.model import StepTotals, StreamKey


class Told:
    """Sums the running totals of an engine's streams since we first heard of each.

    Nothing is placed in time here, so it can be held against what the books say was used.
    """

    def __init__(self) -> None:
        self._latest: dict[StreamKey, StepTotals] = {}
        self._steps = [0, 0, 0, 0]
        self._elapsed_ns = [0, 0, 0, 0]

    def take(self, key: StreamKey, totals: StepTotals) -> None:
        """Take the totals of one message; an older message than the last changes nothing."""
        before = self._latest.setdefault(key, totals)
        if sum(totals.steps) <= sum(before.steps):
            return
        self._latest[key] = totals
        for kind in range(4):
            self._steps[kind] += max(totals.steps[kind] - before.steps[kind], 0)
            self._elapsed_ns[kind] += max(totals.elapsed_ns[kind] - before.elapsed_ns[kind], 0)

    def end(self) -> None:
        """Forget the streams of a process that has died; their sums stay."""
        self._latest.clear()

    @property
    def totals(self) -> StepTotals:
        """Return the steps and the elapsed nanoseconds by kind."""
        steps, elapsed = self._steps, self._elapsed_ns
        return StepTotals(
            (steps[0], steps[1], steps[2], steps[3]),
            (elapsed[0], elapsed[1], elapsed[2], elapsed[3]),
        )
