"""What is advised, by what it would bring, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from disagg_cluster.planner.separation.pools import MixedEngines, SplitPools

WORTH = 0.1
"""A gain of less than this is no reason to move engines."""
_INTERVAL = 1.645


class Advice(StrEnum):
    """What to do."""

    SEPARATE = "separate"
    STAY_MIXED = "stay mixed"
    MERGE = "merge"
    STAY_SEPARATE = "stay separate"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Gain:
    """Largest load after over largest load before, on the same GPUs; ends of its 90 % interval.

    Infinite where the targets are kept under no load before.
    """

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, ratio: float, deviation: float) -> Gain:
        """The gain whose logarithm is off by this standard deviation."""
        factor = math.exp(_INTERVAL * deviation)
        return cls(ratio, ratio / factor, ratio * factor)

    @property
    def turned(self) -> Gain:
        """That of going the other way."""
        low, ratio, high = (
            1 / end if end else math.inf for end in (self.high, self.ratio, self.low)
        )
        return Gain(ratio, low, high)

    @property
    def worth_it(self) -> bool | None:
        """Whether it surely is one, and one that pays; None where nobody can say.

        Yes: above 1 at the low end and by `WORTH` in the middle. No: less than that at the high
        end.
        """
        if self.high < 1 + WORTH:
            return False
        return True if self.low > 1 and self.ratio > 1 + WORTH else None


@dataclass(frozen=True, slots=True)
class InterferenceSeconds:
    """What mixed steps cost and saved over a while, and how long all steps were meanwhile.

    Of `disagg_engine_interference_seconds_total` (`loss`, `gain`), and the step time of which that
    was known (`disagg_engine_interference_step_seconds_total`).

    Raises:
        ValueError: They cannot have been busy so long.
    """

    lost_seconds: float
    gained_seconds: float
    busy_seconds: float

    def __post_init__(self) -> None:
        net = self.lost_seconds - self.gained_seconds
        if not (self.busy_seconds > 0 and abs(net) < self.busy_seconds):
            raise ValueError(
                f"{self.busy_seconds} busy seconds, of which {net} were lost to mixing"
            )

    @property
    def gain_ratio(self) -> float:
        """The same work over the time that it takes apart.

        A lower estimate: latencies that become shorter let engines take more, too, and this knows
        neither of them nor of what GPUs of one role cannot do for the other.
        """
        return self.busy_seconds / (self.busy_seconds - (self.lost_seconds - self.gained_seconds))


@dataclass(frozen=True, slots=True)
class SeparationVerdict:
    """What is advised for some GPUs, under requests of one mix and its targets.

    `gain` is of separating where engines are mixed, of merging where they are not; `split` the best
    one, or in the latter case the present one. `interference_gain` is what the engines' own seconds
    say (`InterferenceSeconds.gain_ratio`), None where nobody told them.
    """

    advice: Advice
    gain: Gain
    gpus: int
    mixed: MixedEngines
    split: SplitPools
    interference_gain: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UndecidedSeparation:
    """No gain is known, and all that is missing."""

    missing: tuple[str, ...]

    @property
    def reason(self) -> str:
        """In one line."""
        return "; ".join(self.missing)
