"""A request for a range of past load."""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.planner.history.load_series import LoadSpanError, checked_span

DEFAULT_STEP_SECONDS = 60.0
# Beyond it floats cannot distinguish neighbouring steps.
_MOST_STEPS_SINCE_1970 = 1e15


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The whole steps between two times, of one cluster or (None) of all.

    Raises:
        LoadSpanError: There is no such step, or there are too many.
    """

    start_seconds: float
    end_seconds: float
    step_seconds: float = DEFAULT_STEP_SECONDS
    cluster: str | None = None

    def __post_init__(self) -> None:
        given = (self.start_seconds, self.end_seconds, self.step_seconds)
        sound = all(map(math.isfinite, given)) and self.step_seconds > 0
        if not sound or max(map(abs, given[:2])) > _MOST_STEPS_SINCE_1970 * self.step_seconds:
            raise LoadSpanError(f"from {given[0]} s to {given[1]} s in steps of {given[2]} s")
        if checked_span(self._steps, self.step_seconds, "take longer steps, or fewer days") < 1:
            raise LoadSpanError(
                f"no whole step of {given[2]:g} s between {given[0]:.0f} s and {given[1]:.0f} s"
            )

    @property
    def steps(self) -> int:
        """Number of whole steps inside the range."""
        return int(self._steps)

    @property
    def first_seconds(self) -> float:
        """When the first step begins, on a multiple of the step."""
        return math.ceil(self.start_seconds / self.step_seconds) * self.step_seconds

    @property
    def last_seconds(self) -> float:
        """When the last step ends."""
        return math.floor(self.end_seconds / self.step_seconds) * self.step_seconds

    @property
    def _steps(self) -> float:
        return max(0, round((self.last_seconds - self.first_seconds) / self.step_seconds))
