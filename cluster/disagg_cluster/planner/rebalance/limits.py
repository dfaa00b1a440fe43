"""How far moves may go: whether they are made at all, how often, and what pools keep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.errors import DisaggError

HOUR_SECONDS = 3600.0


class RebalanceMode(StrEnum):
    """Do nothing, say what one would do, or do it."""

    OFF = "off"
    ADVISE = "advise"
    ACT = "act"


class RebalanceLimitsError(DisaggError):
    """Limits that nothing can keep; says all that is wrong."""


@dataclass(frozen=True, slots=True)
class RebalanceLimits:
    """What moves of one model stay within.

    `least_engines` stay in each pool. From the end of a move `cool_down_seconds` pass before the
    next begins, and at most `moves_per_hour` begin within an hour. What moves bring is counted
    over `horizon_seconds`, and must be worth `gain_ratio` times what they cost.

    Raises:
        RebalanceLimitsError: They make no sense.
    """

    moves_per_hour: int = 6
    least_engines: int = 1
    cool_down_seconds: float = 120.0
    horizon_seconds: float = HOUR_SECONDS
    gain_ratio: float = 2.0

    def __post_init__(self) -> None:
        problems = []
        if self.moves_per_hour < 1:
            problems.append(f"{self.moves_per_hour} moves an hour")
        if self.least_engines < 1:
            problems.append(f"{self.least_engines} engines at least: a pool would be empty")
        if not self.cool_down_seconds >= 0:
            problems.append(f"a cool-down of {self.cool_down_seconds} s")
        if not self.horizon_seconds > 0:
            problems.append(f"a horizon of {self.horizon_seconds} s")
        if not self.gain_ratio >= 1:
            problems.append(f"moves for {self.gain_ratio} times what they cost")
        if problems:
            raise RebalanceLimitsError("; ".join(problems))
