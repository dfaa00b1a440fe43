"""What an engine says of itself: steps and step time by kind, over all its processes."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_exporter.model import StepTotals, StreamKey


class Told:
    """Sums the running totals of an engine's streams since we first heard of each.

    Nothing is placed in time here, so it can be held against what the books say was used.
    """

    def __init__(self) -> None:
        self._latest: dict[StreamKey, tuple[int, StepTotals]] = {}
        self._steps = [0, 0, 0, 0]
        self._elapsed_ns = [0, 0, 0, 0]

    def take(self, key: StreamKey, totals: StepTotals) -> None:
        """Take the totals of one message; an older message than the last changes nothing."""
        count = sum(totals.steps)
        before_count, before = self._latest.get(key) or (count, totals)
        if count > before_count:
            _add_growth(self._steps, before.steps, totals.steps)
            _add_growth(self._elapsed_ns, before.elapsed_ns, totals.elapsed_ns)
        elif before is not totals:
            return
        self._latest[key] = count, totals

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


def _add_growth(sums: list[int], before: Sequence[int], after: Sequence[int]) -> None:
    # Mostly one of the four has grown.
    for kind, number in enumerate(after):
        if number > before[kind]:
            sums[kind] += number - before[kind]
