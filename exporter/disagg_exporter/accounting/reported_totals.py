"""Steps and step time by kind as an engine reports them, over all its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disagg_exporter.model import StepTotals, StreamKey

MOST_STREAMS = 1024
"""Streams of one engine that are remembered until it ends: its plugin begins one per process."""


@dataclass(slots=True)
class _Stream:
    """The totals of one stream: those that are summed already, and the latest."""

    summed: StepTotals
    latest: StepTotals


class ReportedTotals:
    """Sums the running totals of an engine's streams since each one's first message.

    Nothing is placed in time here, so it can be compared with what is accounted for.
    """

    def __init__(self) -> None:
        self._streams: dict[StreamKey, _Stream] = {}
        self._steps = [0, 0, 0, 0]
        self._elapsed_ns = [0, 0, 0, 0]

    def has_room(self, key: StreamKey) -> bool:
        """Say whether a stream is known, or there is room for it."""
        return key in self._streams or len(self._streams) < MOST_STREAMS

    def has(self, key: StreamKey) -> bool:
        """Say whether anything was received of a stream."""
        return key in self._streams

    def add(self, key: StreamKey, totals: StepTotals) -> None:
        """Add the totals of one message; an older message than the last changes nothing."""
        stream = self._streams.get(key)
        if stream is None:
            self._streams[key] = _Stream(totals, totals)
        elif totals.steps > stream.latest.steps:
            # None of them ever falls, so the first that differs tells which is the later.
            stream.latest = totals

    def resume(self, reported: StepTotals, streams: Mapping[StreamKey, StepTotals]) -> None:
        """Continue with the sums of before, and with streams summed up to these totals."""
        self._steps, self._elapsed_ns = list(reported.steps), list(reported.elapsed_ns)
        self._streams = {key: _Stream(totals, totals) for key, totals in streams.items()}

    def end(self) -> None:
        """Forget the streams of a process that has died; their sums stay."""
        self._sum_up()
        self._streams.clear()

    @property
    def totals(self) -> StepTotals:
        """Return the steps and the elapsed nanoseconds by kind."""
        self._sum_up()
        steps, elapsed = self._steps, self._elapsed_ns
        return StepTotals(
            (steps[0], steps[1], steps[2], steps[3]),
            (elapsed[0], elapsed[1], elapsed[2], elapsed[3]),
        )

    def _sum_up(self) -> None:
        for stream in self._streams.values():
            before, after = stream.summed, stream.latest
            for kind in range(4):
                # An engine that counts down is not believed.
                self._steps[kind] += max(after.steps[kind] - before.steps[kind], 0)
                self._elapsed_ns[kind] += max(after.elapsed_ns[kind] - before.elapsed_ns[kind], 0)
            stream.summed = after
