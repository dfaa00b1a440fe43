"""A device's energy by what its time was spent on (accounting A10)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.accounting.sharing import uses_within
from disagg_exporter.accounting.slices import Slices
from disagg_exporter.model import Cell, DeviceReading, Reason, Role, Use

LONGEST_BUFFER = 1024
"""Intervals kept until the watermark has passed them; at 10 readings a second, 100 s. Beyond it
neighbours are joined: their split gets coarser, and no joule is lost."""


class Spent(NamedTuple):
    """What a committed stretch of a device's time was spent on: all under one role.

    `owners`: (model name, namespace) of each engine. `unheld`: for each reason why nobody held the
    device, the cells (without a reason) that its time went to; their lengths are its shares.
    """

    slices: Slices
    role: Role
    owners: Mapping[str, tuple[str, str]]
    unheld: Mapping[Reason, Counter[Cell]]


@dataclass(slots=True)
class _Interval:
    """The energy told between two readings, and how its time was spent so far."""

    start_ns: int
    end_ns: int
    microjoules: int
    watts: float | None
    shares: defaultdict[Cell, float] = field(default_factory=lambda: defaultdict(float))
    held: bool = False


class EnergyBooks:
    """The energy of one device: told between readings, split once that time is committed.

    `microjoules` is the committed energy by cell (without reasons), None until the device tells
    of energy. Whole numbers, so that the parts of an interval sum to what was told of it.
    """

    def __init__(self) -> None:
        self.microjoules: Counter[Cell] | None = None
        self.baseline_watts: float | None = None
        self._waiting: deque[_Interval] = deque()
        self._last: tuple[int, int] | None = None

    @property
    def waiting(self) -> int:
        """How many intervals wait to be split."""
        return len(self._waiting)

    def read(self, reading: DeviceReading, watermark_ns: int) -> None:
        """Take a device's running total; the interval since it last moved waits to be split.

        A driver may move its total less often than it is read, so one that stands still tells
        nothing yet: what it shows next was used in all the time since.
        An interval that ends below the watermark cannot be split any more and is left out, as is
        one over which the driver's total fell (it began anew).
        """
        if reading.energy_joules is None:
            return
        if self.microjoules is None:
            self.microjoules = Counter()
        before, now = self._last, (reading.t_ns, round(reading.energy_joules * 1e6))
        if before is not None and (reading.t_ns <= before[0] or now[1] == before[1]):
            return
        self._last = now
        if before is None or now[1] < before[1] or reading.t_ns <= watermark_ns:
            return
        self._waiting.append(_Interval(before[0], now[0], now[1] - before[1], reading.power_watts))
        if len(self._waiting) > LONGEST_BUFFER:
            self._join_neighbours()

    def commit(self, spent: Spent) -> None:
        """Split what was told over a stretch of time that has been committed."""
        if not self._waiting or self.microjoules is None:
            return
        end_ns = int(spent.slices.edges_ns[-1])
        touched = [interval for interval in self._waiting if interval.start_ns < end_ns]
        uses = uses_within(
            spent.slices, [one.start_ns for one in touched], [one.end_ns for one in touched]
        )
        for (engine, use), lengths_ns in uses.held.items():
            cell = Cell(spent.role, use, Reason.NONE, *spent.owners[engine])
            for interval, length_ns in zip(touched, lengths_ns, strict=True):
                if length_ns > 0:
                    interval.held = True
                    interval.shares[cell] += length_ns
        for reason, lengths_ns in uses.unheld.items():
            parts = spent.unheld[reason]
            for cell, part in parts.items():
                for interval, length_ns in zip(touched, lengths_ns, strict=True):
                    if part and length_ns > 0:
                        interval.shares[cell] += length_ns * part / parts.total()
        while self._waiting and self._waiting[0].end_ns <= end_ns:
            self._settle(self._waiting.popleft(), self.microjoules)

    def _settle(self, interval: _Interval, books: Counter[Cell]) -> None:
        if not interval.held and interval.watts is not None:
            known = self.baseline_watts
            self.baseline_watts = interval.watts if known is None else min(known, interval.watts)
        idle = {cell: ns for cell, ns in interval.shares.items() if cell.use is Use.IDLE}
        rest = {cell: ns for cell, ns in interval.shares.items() if cell.use is not Use.IDLE}
        idle_share = sum(idle.values()) / sum(interval.shares.values())
        for_idle = interval.microjoules * idle_share
        if rest and self.baseline_watts is not None:
            idle_ns = (interval.end_ns - interval.start_ns) * idle_share
            for_idle = min(for_idle, self.baseline_watts * idle_ns / 1e3)
        idle_microjoules = round(for_idle)
        rest_microjoules = interval.microjoules - idle_microjoules
        for whole, shares in ((idle_microjoules, idle), (rest_microjoules, rest)):
            for cell, part in _split(whole, shares):
                books[cell] += part

    def _join_neighbours(self) -> None:
        intervals = list(self._waiting)
        self._waiting = deque(map(_joined, intervals[::2], intervals[1::2]))
        if len(intervals) % 2:
            self._waiting.append(intervals[-1])


def _joined(first: _Interval, second: _Interval) -> _Interval:
    watts = [interval.watts for interval in (first, second) if interval.watts is not None]
    both = _Interval(
        first.start_ns,
        second.end_ns,
        first.microjoules + second.microjoules,
        min(watts, default=None),
        first.shares,
        first.held or second.held,
    )
    for cell, share in second.shares.items():
        both.shares[cell] += share
    return both


def _split(whole: int, shares: Mapping[Cell, float]) -> Iterator[tuple[Cell, int]]:
    """Divide a whole number by shares; the parts are whole numbers that sum to it."""
    total = sum(shares.values())
    share_so_far, given = 0.0, 0
    for cell, share in shares.items():
        share_so_far += share
        upto = round(whole * share_so_far / total)
        yield cell, upto - given
        given = upto
