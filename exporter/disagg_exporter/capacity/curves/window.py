"""The last minute of one stream of steps: what was asked of the engine, and what held it up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from operator import add, attrgetter, sub

SECOND_NS = 1_000_000_000
WINDOW_NS = 60 * SECOND_NS
CONCLUDE_EVERY_NS = 5 * SECOND_NS
"""Limits change slowly; the load is taken every second."""


@dataclass(slots=True)
class Tally:
    """Sums over a stretch of time; one stretch begins where the one before ended.

    `*_ns` are lengths of time. `batch_ns` and `kv_ns` are a batch and a share of the cache times
    the time they lasted. `paired_ns` is time from step to step with work pending, `worked_ns` the
    part of it inside the steps, `paired_steps` their number. `blocked_ns`: requests waited and a
    step took none of them in.
    """

    length_ns: float = 0.0
    prefill_tokens: float = 0.0
    batch_ns: float = 0.0
    kv_ns: float = 0.0
    blocked_ns: float = 0.0
    waiting_ns: float = 0.0
    paired_ns: float = 0.0
    worked_ns: float = 0.0
    prefill_ns: float = 0.0
    prefill_steps: float = 0.0
    decode_tokens: float = 0.0
    decode_steps: float = 0.0
    steps: float = 0.0
    decode_ns: float = 0.0
    preemptions: float = 0.0
    paired_steps: float = 0.0

    def __iadd__(self, other: Tally) -> Tally:
        return Tally(*map(add, _ALL(self), _ALL(other)))


FIELDS = tuple(field.name for field in fields(Tally))
_ALL = attrgetter(*FIELDS)


class Window:
    """The tallies of the last minute, end to end; the oldest counts as far as it reaches in."""

    __slots__ = ("_kept", "_sums")

    def __init__(self) -> None:
        self._kept: deque[tuple[float, ...]] = deque()
        self._sums: list[float] = list(_ALL(Tally()))

    def add(self, tally: Tally) -> None:
        """Take the tally of the time since the one before."""
        told: tuple[float, ...] = _ALL(tally)
        self._kept.append(told)
        self._sums = list(map(add, self._sums, told))
        while self._sums[0] - self._kept[0][0] >= WINDOW_NS:
            self._sums = list(map(sub, self._sums, self._kept.popleft()))
            if min(self._sums) < 0:
                # Rounding may leave a little less than nothing behind.
                self._sums = [max(value, 0.0) for value in self._sums]

    @property
    def total(self) -> Tally:
        """The sums of the last minute, or of what there is of it."""
        over_ns = self._sums[0] - WINDOW_NS
        if over_ns <= 0:
            return Tally(*self._sums)
        part = over_ns / self._kept[0][0]
        sums = zip(self._sums, self._kept[0], strict=True)
        return Tally(*(max(a - part * b, 0.0) for a, b in sums))
