"""Limits of moves: whether and how often they are made, and the least size of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.errors import DisaggError

HOUR_SECONDS = 3600.0


class RebalanceMode(StrEnum):
    """Do nothing, advise moves, or make them."""

    OFF = "off"
    ADVISE = "advise"
    ACT = "act"


class RebalanceLimitsError(DisaggError):
    """Invalid limits; the text names all problems."""


@dataclass(frozen=True, slots=True)
class RebalanceLimits:
    """Limits of the moves of one model.

    Each pool keeps `least_engines`. After a move ends, `cool_down_seconds` pass before the next one
    begins; at most `moves_per_hour` begin within an hour. The gain of moves is computed over
    `horizon_seconds` and must exceed `gain_ratio` times their cost.

    Raises:
        RebalanceLimitsError: A limit is invalid.
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
