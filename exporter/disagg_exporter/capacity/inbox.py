"""What streams have told since the last look, put aside as it came."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_exporter.model import Step, StreamKey
from disagg_exporter.steps.rows import Rows, joined, rows_of


class Told:
    """What one stream told, in order, while its `overlapped` was the same.

    `beats` are hellos and heartbeats, each with the number of records that came before it.
    """

    __slots__ = ("_count", "_parts", "_single", "beats", "overlapped")

    def __init__(self, *, overlapped: bool) -> None:
        self.overlapped = overlapped
        self.beats: list[tuple[int, Step]] = []
        self._parts: list[Rows] = []
        self._single: list[Step] = []
        self._count = 0

    def step(self, step: Step) -> None:
        """Add one record."""
        self._single.append(step)
        self._count += 1

    def steps(self, rows: Rows) -> None:
        """Add some records."""
        if self._single:
            self._gather()
        self._parts.append(rows)
        self._count += len(rows)

    def beat(self, said: Step) -> None:
        """Add a hello or heartbeat."""
        self.beats.append((self._count, said))

    def rows(self, before: Rows) -> Rows:
        """Return the records after those `before`."""
        self._gather()
        return joined([before, *self._parts])

    def _gather(self) -> None:
        if self._single:
            self._parts.append(rows_of(self._single))
            self._single = []


class Arrived:
    """Messages of many streams; `count` says how many."""

    def __init__(self) -> None:
        self.count = 0
        self._told: dict[StreamKey, list[Told]] = {}

    def step(self, key: StreamKey, step: Step, *, overlapped: bool) -> None:
        """Add one record."""
        self._latest(key, overlapped=overlapped).step(step)
        self.count += 1

    def steps(self, key: StreamKey, rows: Rows, *, overlapped: bool) -> None:
        """Add some records of one stream, in the order in which they came."""
        if len(rows):
            self._latest(key, overlapped=overlapped).steps(rows)
            self.count += len(rows)

    def hear(self, key: StreamKey, said: Step) -> None:
        """Add a hello or heartbeat."""
        several = self._told.get(key)
        told = several[-1] if several else self._latest(key, overlapped=False)
        told.beat(said)
        self.count += 1

    def take(self) -> Iterator[tuple[StreamKey, Told]]:
        """Yield what has come, stream by stream, and begin anew."""
        arrived, self._told, self.count = self._told, {}, 0
        for key, several in arrived.items():
            for told in several:
                yield key, told

    def _latest(self, key: StreamKey, *, overlapped: bool) -> Told:
        several = self._told.get(key)
        if several is None:
            several = self._told[key] = []
        elif several[-1].overlapped is overlapped:
            return several[-1]
        several.append(Told(overlapped=overlapped))
        return several[-1]
