"""A device's energy by the use of its time (accounting A10)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

import numpy as np

from disagg_exporter.accounting.devices.power_model import COLUMNS, LAGS_NS, PowerModel
from disagg_exporter.accounting.devices.removed_devices import fold
from disagg_exporter.accounting.devices.use_trail import LONGEST_LAG_NS, UseTrail, uses_within
from disagg_exporter.accounting.intervals.intervals import Intervals
from disagg_exporter.accounting.intervals.row_queue import Flags, Floats, Ints
from disagg_exporter.model import Cell, DeviceReading, Reason, Role, Use
from disagg_exporter.model.checkpoints import EnergyCheckpoint

LONGEST_BUFFER = 1024
"""Intervals kept until the watermark passes them; 100 s at 10 readings a second. Beyond this
number neighbours are joined: their split gets coarser, but no energy is lost."""

_NO_LIMIT_WATTS = 1e15
_NOT_ENDED_NS = 2**62
# Between two readings: a gigajoule. The sum of 9000 pending ones fits in 63 bits.
_MOST_MICROJOULES = 10**15
_SAME_LIMIT = 0.02


class CommittedTime(NamedTuple):
    """The uses of a committed period of a device's time, all under one role.

    `owners`: (model name, namespace) of each engine. `unheld`: for each reason for having no
    holder, the cells (without a reason) that its time went to; their lengths are its shares.
    """

    intervals: Intervals
    role: Role
    owners: Mapping[str, tuple[str, str]]
    unheld: Mapping[Reason, Counter[Cell]]


@dataclass(slots=True)
class _EnergyInterval:
    """The energy between two readings, and the uses of its time committed so far."""

    start_ns: int
    end_ns: int = _NOT_ENDED_NS
    microjoules: int = 0
    watts: float | None = None
    shares: dict[Cell, float] = field(default_factory=dict)
    held: bool = False
    limit_changed: bool = False


class EnergyLedger:
    """One device's energy: read as a running total, split once its time is committed.

    `microjoules` is the committed energy by cell (without reasons), None until the device's total
    has moved; integers, so that the parts of an interval sum to its energy. `lengths_ns` is the
    time of the same intervals, also by cell.
    """

    def __init__(self) -> None:
        self.microjoules: Counter[Cell] | None = None
        self.lengths_ns: Counter[Cell] = Counter()
        self.baseline_watts: float | None = None
        self.power = PowerModel()
        self._trail = UseTrail()
        self._waiting: deque[_EnergyInterval] = deque()
        self._last: tuple[int, int] | None = None
        self._limit_watts: float | None = None
        self._limit_changed = False
        # What follows the last reading at which the total moved; a slow counter's next move may
        # come long after that time was committed.
        self._open: _EnergyInterval | None = None

    @property
    def waiting(self) -> int:
        """The number of intervals that are yet to be split."""
        return len(self._waiting)

    def checkpoint(self) -> EnergyCheckpoint | None:
        """Return the committed energy, and the reading from which the next daemon continues.

        Energy not split yet becomes part of the long interval up to the next reading.
        """
        if self.microjoules is None:
            return None
        read_ns, read_microjoules = self._last or (None, 0)
        if self._waiting:
            read_ns = self._waiting[0].start_ns
            read_microjoules -= sum(interval.microjoules for interval in self._waiting)
        return EnergyCheckpoint(
            tuple(self.microjoules.items()),
            self.baseline_watts,
            read_ns,
            max(read_microjoules, 0),
            tuple(self.lengths_ns.items()),
            self.power.checkpoint(),
            self._limit_watts,
        )

    def resume(self, before: EnergyCheckpoint | None) -> None:
        """Continue with the committed energy of a checkpoint."""
        if before is None:
            return
        self.microjoules = Counter(dict(before.microjoules))
        self.lengths_ns = Counter(dict(before.lengths_ns))
        self.baseline_watts = before.baseline_watts
        self._limit_watts = before.limit_watts
        self.power.resume(before.power, before.baseline_watts)
        if before.read_ns is not None:
            self._last = before.read_ns, before.read_microjoules
            self._open = _EnergyInterval(before.read_ns)

    def forget_model(self, model_name: str) -> None:
        """Move a model's sums to the unnamed model."""
        fold(self.microjoules, model_name)
        fold(self.lengths_ns, model_name)

    def read(self, reading: DeviceReading, watermark_ns: int) -> None:
        """Ingest a device's running total; the interval since it last moved is split later.

        A driver may update its total less often than it is read, so an unchanged total is ignored:
        the next change covers all the time since the last one. Left out is an interval that ends
        below the watermark (it cannot be split any more), and one over which the total fell (the
        driver restarted it) or rose implausibly.
        """
        if self._has_new_limit(reading.power_limit_watts):
            self._limit_changed = True
        if reading.energy_joules is None or not isfinite(reading.energy_joules):
            return
        before, now = self._last, (reading.t_ns, round(reading.energy_joules * 1e6))
        if before is not None and (reading.t_ns <= before[0] or now[1] == before[1]):
            return
        self._last = now
        ended, self._open = self._open, _EnergyInterval(reading.t_ns)
        if before is None or ended is None or reading.t_ns <= watermark_ns:
            return
        if not 0 <= now[1] - before[1] <= _MOST_MICROJOULES:
            return
        if self.microjoules is None:
            self.microjoules = Counter()
        ended.end_ns, ended.microjoules = now[0], now[1] - before[1]
        ended.watts = reading.power_watts
        ended.limit_changed, self._limit_changed = self._limit_changed, False
        self._waiting.append(ended)
        if len(self._waiting) > LONGEST_BUFFER:
            self._join_neighbours()

    def _has_new_limit(self, limit_watts: float | None) -> bool:
        before = self._limit_watts
        if limit_watts is None or not limit_watts > 0:
            return False
        if before is not None and abs(limit_watts - before) <= _SAME_LIMIT * before:
            return False
        self._limit_watts = limit_watts
        return before is not None

    def commit(self, committed: CommittedTime) -> None:
        """Split the energy of time that has been committed."""
        if self._open is None:
            return
        end_ns = int(committed.intervals.edges_ns[-1])
        touched = [one for one in (*self._waiting, self._open) if one.start_ns < end_ns]
        if not touched:
            return
        shares, held = _shares(committed, touched)
        done = sum(interval.end_ns <= end_ns for interval in touched)
        # Intervals that reach beyond it also get shares from the next commit.
        for number, interval in enumerate(touched[done:], start=done):
            interval.held = bool(held[number])
            interval.shares = {c: float(ns[number]) for c, ns in shares.items() if ns[number] > 0}
        if not done or self.microjoules is None:
            return
        explained = {cell: ns[:done] for cell, ns in shares.items() if (ns[:done] > 0).any()}
        self._settle(touched[:done], explained, held[:done], self.microjoules)
        for _ in range(done):
            self._waiting.popleft()

    def _settle(
        self,
        intervals: Sequence[_EnergyInterval],
        shares: Mapping[Cell, Floats],
        held: Flags,
        sums: Counter[Cell],
    ) -> None:
        wholes = np.array([interval.microjoules for interval in intervals], np.int64)
        lengths_ns = np.array([each.end_ns - each.start_ns for each in intervals], np.int64)
        # A driver may report NaN, too, or 0, which no device draws whose energy is counted.
        watts = np.array([one.watts for one in intervals], np.float64)
        watts[~(watts > 0)] = np.inf
        known = np.inf if self.baseline_watts is None else self.baseline_watts
        # The baseline at each interval: the lowest known up to and including it.
        lowest = np.minimum.accumulate(np.append(known, np.where(held, np.inf, watts)))
        if np.isfinite(lowest[-1]):
            self.baseline_watts = float(lowest[-1])
        count, nothing = len(intervals), np.zeros(len(intervals))
        _split(lengths_ns, shares, sum(shares.values(), nothing), self.lengths_ns)
        watts_by_column, lag_ns = self.power.watts, self.power.lag_ns
        self._trail.follow(lengths_ns.astype(np.float64), shares)
        if any(interval.limit_changed for interval in intervals):
            # What was drawn under another limit tells nothing of what is drawn under this one.
            self.power = PowerModel()
        else:
            self._learn(count, wholes / 1e6)
        if watts_by_column is not None and lag_ns is not None:
            by_watts = {
                cell: ns * watts_by_column[COLUMNS[cell.use]]
                for cell, ns in self._trail.stretched(count, lag_ns, lag_ns).items()
            }
            _split(wholes, by_watts, sum(by_watts.values(), nothing), sums)
            return
        if lag_ns is None:  # unknown: spread over the interval and all lags
            shares = self._trail.stretched(count, LONGEST_LAG_NS, 0)
        idle = {cell: ns for cell, ns in shares.items() if cell.use is Use.IDLE}
        rest = {cell: ns for cell, ns in shares.items() if cell.use is not Use.IDLE}
        idle_ns, rest_ns = sum(idle.values(), nothing), sum(rest.values(), nothing)
        spent_ns = idle_ns + rest_ns
        idle_share = np.divide(idle_ns, spent_ns, out=np.zeros_like(spent_ns), where=spent_ns > 0)
        most = np.minimum(lowest[1:], _NO_LIMIT_WATTS) * (lengths_ns * idle_share) / 1e3
        most[rest_ns == 0] = np.inf
        for_idle = np.rint(np.minimum(wholes * idle_share, most)).astype(np.int64)
        _split(for_idle, idle, idle_ns, sums)
        _split(wholes - for_idle, rest, rest_ns, sums)

    def _learn(self, count: int, joules: Floats) -> None:
        """Learn from those of the last `count` intervals whose past is known for every lag."""
        known = self._trail.reaches(count, LONGEST_LAG_NS)
        seconds = np.zeros((len(LAGS_NS), count, 1 + max(COLUMNS.values())))
        lags_ns = np.array(LAGS_NS)[:, None]
        for cell, ns in self._trail.stretched(count, lags_ns, lags_ns).items():
            seconds[:, :, COLUMNS[cell.use]] += ns * known / 1e9
        self.power.learn(seconds, joules * known, self.baseline_watts)

    def _join_neighbours(self) -> None:
        intervals = list(self._waiting)
        self._waiting = deque(map(_joined, intervals[::2], intervals[1::2]))
        if len(intervals) % 2:
            self._waiting.append(intervals[-1])


def _joined(first: _EnergyInterval, second: _EnergyInterval) -> _EnergyInterval:
    watts = [interval.watts for interval in (first, second) if interval.watts is not None]
    both = _EnergyInterval(
        first.start_ns,
        second.end_ns,
        first.microjoules + second.microjoules,
        min(watts, default=None),
        first.shares,
        first.held or second.held,
        first.limit_changed or second.limit_changed,
    )
    for cell, share in second.shares.items():
        both.shares[cell] = both.shares.get(cell, 0.0) + share
    return both


def _shares(
    committed: CommittedTime, intervals: Sequence[_EnergyInterval]
) -> tuple[dict[Cell, Floats], Flags]:
    """Return the uses of each interval's time, and whether any engine held the device in it.

    Uses from earlier commits, which the first interval and one that has not ended can have, are
    included.
    """
    shares: defaultdict[Cell, Floats] = defaultdict(lambda: np.zeros(len(intervals)))
    held = np.array([interval.held for interval in intervals], np.bool_)
    for number, interval in enumerate(intervals):
        for cell, share in interval.shares.items():
            shares[cell][number] += share
    uses = uses_within(
        committed.intervals, [one.start_ns for one in intervals], [one.end_ns for one in intervals]
    )
    for (engine, use), lengths_ns in uses.held.items():
        shares[Cell(committed.role, use, Reason.NONE, *committed.owners[engine])] += lengths_ns
        held |= lengths_ns > 0
    for reason, lengths_ns in uses.unheld.items():
        parts = committed.unheld[reason]
        for cell, part in parts.items():
            if part:
                shares[cell] += lengths_ns * part / parts.total()
    return shares, held


def _split(
    wholes: Ints, shares: Mapping[Cell, Floats], totals: Floats, sums: Counter[Cell]
) -> None:
    """Divide integers by shares into integer parts that sum to them; add these to `sums`."""
    so_far, given = np.zeros(len(wholes)), np.zeros(len(wholes), np.int64)
    for cell, share in shares.items():
        so_far += share
        upto = np.rint(wholes * so_far / np.where(totals > 0, totals, 1.0)).astype(np.int64)
        sums[cell] += int((upto - given).sum())
        given = upto
