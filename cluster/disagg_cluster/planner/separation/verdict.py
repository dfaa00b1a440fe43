"""What is advised, its gain, and why."""

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

    Infinite if the targets were not met at any load before. `low` is 0, or `high` infinite, where
    no engine was ever seen at the limit of one of the loads, which may be higher.
    """

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, ratio: float, deviation: float) -> Gain:
        """The gain whose logarithm has this standard deviation."""
        factor = math.exp(_INTERVAL * deviation)
        return cls(ratio, ratio / factor, ratio * factor)

    @property
    def inverse(self) -> Gain:
        """The gain of the opposite change."""
        low, ratio, high = (
            1 / end if end else math.inf for end in (self.high, self.ratio, self.low)
        )
        return Gain(ratio, low, high)

    @property
    def worth_it(self) -> bool | None:
        """Whether it is certainly a gain, and one that pays; None if undecided.

        Yes: above 1 at the low end and above 1 + `WORTH` in the middle. No: below 1 + `WORTH` at
        the high end.
        """
        if self.high < 1 + WORTH:
            return False
        return True if self.low > 1 and self.ratio > 1 + WORTH else None


@dataclass(frozen=True, slots=True)
class InterferenceSeconds:
    """Seconds that mixed steps cost and saved over some time, and the time of all steps in it.

    From `disagg_engine_interference_seconds_total` (`loss`, `gain`), and the step time for which
    these were known (`disagg_engine_interference_step_seconds_total`).

    Raises:
        ValueError: The busy time is not longer than what was lost or saved in it.
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
        """Time of the work as it was, over its time without mixing.

        A lower estimate: shorter latencies would let engines serve more, too. It considers neither
        these nor that GPUs of one role cannot work for the other.
        """
        return self.busy_seconds / (self.busy_seconds - (self.lost_seconds - self.gained_seconds))


@dataclass(frozen=True, slots=True)
class SeparationVerdict:
    """What is advised for some GPUs, for one request mix and its targets.

    `gain` is that of separating if engines are mixed today, else of merging; `split` is the best
    one, or in the latter case the present one. `interference_gain` follows from the seconds that
    the engines measured (`InterferenceSeconds.gain_ratio`), None if there are none.
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
    """The gain is not known, for lack of all of `missing`."""

    missing: tuple[str, ...]

    @property
    def reason(self) -> str:
        """What is missing, in one line."""
        return "; ".join(self.missing)
