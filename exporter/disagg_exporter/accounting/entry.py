"""What a lane keeps of a record until its time is frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.accounting.phase import Work
from disagg_exporter.model import Reason, Step, StepTotals


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


@dataclass(slots=True, eq=False)
class Stream:
    """One counter of an engine: what is settled of it, and which later records are here.

    Everything up to `sequence` is in the books; `seen` are the numbers beyond it that came.
    """

    sequence: int
    totals: StepTotals
    seen: set[int] = field(default_factory=set)

    def forget_settled(self) -> None:
        """Drop from `seen` what is in the books."""
        self.seen = {number for number in self.seen if number > self.sequence}


@dataclass(slots=True, order=True)
class Entry:
    """A step that is not frozen yet; entries sort in the order their records were made.

    `marker`: a heartbeat that knows of a newer record than we do; it holds no time itself.
    `lost`: how many missing records this entry stands for (see `restore`); such an entry is made
    anew at each look, so that the missing records may still arrive, until it is `begun`: partly
    frozen, and `elapsed_ns` is what remains of it.
    `length_ns` is how long a span it makes, as of the last look at it (`Unfrozen`).
    `step` is kept until the entry's time is divided between the phases; `work` is provisional
    until then.
    """

    t_ns: int
    sequence: int
    elapsed_ns: int = field(compare=False)
    work: Work = field(compare=False)
    stream: Stream = field(compare=False)
    kind: int = field(compare=False, default=0)
    tokens: tuple[int, int] = field(compare=False, default=(0, 0))
    totals: StepTotals = field(compare=False, default_factory=StepTotals)
    pending_work: bool = field(compare=False, default=False)
    gap_after: Reason | None = field(compare=False, default=None)
    marker: bool = field(compare=False, default=False)
    lost: int = field(compare=False, default=0)
    begun: bool = field(compare=False, default=False)
    step: Step | None = field(compare=False, default=None)
    length_ns: int = field(compare=False, default=0)


def promises_work(step: Step) -> bool:
    """Say whether an engine has something left to do after a step."""
    return step.running > 0 or step.waiting > 0


def gap_after(step: Step) -> Reason:
    """Return why an engine rests after a step, if it does."""
    if promises_work(step):
        return Reason.HOST_GAP
    return Reason.KV_WAIT if step.deferred > 0 else Reason.NO_REQUEST
