"""What a lane keeps of a record until its time is frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.accounting.phase import Work
from disagg_exporter.model import Reason, StepTotals, StreamKey


class Piece(NamedTuple):
    """A stretch of an engine's time: `work`, or None and the reason why there was none."""

    start_ns: int
    end_ns: int
    work: Work | None
    reason: Reason


class Overflow(NamedTuple):
    """Step time that found no room above the mark: owed to every device of the engine."""

    work: Work
    length_ns: int


class Recent(NamedTuple):
    """One step as it arrived, for the fast gauges."""

    t_ns: int
    length_ns: int
    work: Work


@dataclass(slots=True, order=True)
class Entry:
    """A step that is not frozen yet; entries sort in the order their records were made.

    `marker`: a heartbeat that knows of a newer record than we do; it holds no time itself.
    `lost`: how many missing records this entry stands for (see `restore`); such an entry is made
    anew at each look, so that the missing records may still arrive, until it is `begun`: partly
    frozen, and `elapsed_ns` is what remains of it.
    """

    t_ns: int
    sequence: int
    elapsed_ns: int = field(compare=False)
    work: Work = field(compare=False)
    key: StreamKey = field(compare=False)
    kind: int = field(compare=False, default=0)
    tokens: tuple[int, int] = field(compare=False, default=(0, 0))
    totals: StepTotals = field(compare=False, default_factory=StepTotals)
    pending_work: bool = field(compare=False, default=False)
    gap_after: Reason | None = field(compare=False, default=None)
    marker: bool = field(compare=False, default=False)
    lost: int = field(compare=False, default=0)
    begun: bool = field(compare=False, default=False)


@dataclass(slots=True)
class Stream:
    """What is settled of one counter: everything up to `sequence` is in the books."""

    sequence: int
    totals: StepTotals
