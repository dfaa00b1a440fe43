"""Which past is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.planner.history.load_series import LoadSpanError, checked_span

DEFAULT_STEP_SECONDS = 60.0
# Beyond it floats do not tell one step from the next.
_MOST_STEPS_SINCE_1970 = 1e15


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The steps that lie between two times, of one cluster or (None) of all.

    Raises:
        LoadSpanError: No step does, or too many.
    """

    start_seconds: float
    end_seconds: float
    step_seconds: float = DEFAULT_STEP_SECONDS
    cluster: str | None = None

    def __post_init__(self) -> None:
        told = (self.start_seconds, self.end_seconds, self.step_seconds)
        sound = all(map(math.isfinite, told)) and self.step_seconds > 0
        if not sound or max(map(abs, told[:2])) > _MOST_STEPS_SINCE_1970 * self.step_seconds:
            raise LoadSpanError(f"from {told[0]} s to {told[1]} s in steps of {told[2]} s")
        if checked_span(self._steps, self.step_seconds) < 1:
            raise LoadSpanError(
                f"from {told[0]:.0f} s to {told[1]:.0f} s lies no whole step of {told[2]:g} s"
            )

    @property
    def steps(self) -> int:
        """How many steps begin and end inside."""
        return int(self._steps)

    @property
    def first_seconds(self) -> float:
        """When the first step begins: on a multiple of the step."""
        return math.ceil(self.start_seconds / self.step_seconds) * self.step_seconds

    @property
    def last_seconds(self) -> float:
        """When the last step ends."""
        return math.floor(self.end_seconds / self.step_seconds) * self.step_seconds

    @property
    def _steps(self) -> float:
        return max(0, round((self.last_seconds - self.first_seconds) / self.step_seconds))
