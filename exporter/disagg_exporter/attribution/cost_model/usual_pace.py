"""What an engine's steps are held against: their costs at the pace that it has had for hours."""

from __future__ import annotations

from disagg_exporter.model import ExpectedSteps

# What is learned first is warm-up; from then on a slowdown must not pass for usual.
_WARM_UP_SECONDS = 120.0
_MEMORY_SECONDS = 6 * 3600.0
_KINDS = 3


class UsualPace:
    """The pace of an engine's steps in the long run, and what its steps take beside that.

    After half an hour 8 % of a change are in the pace. Step time, not time of day, passes for it:
    an engine that rests forgets nothing. In its first two minutes it is the mean.
    """

    __slots__ = ("_expected", "_ratio", "_seconds", "_taken", "began")

    def __init__(self) -> None:
        self.began = False
        self._ratio, self._seconds = 1.0, 0.0
        self._expected, self._taken = [0.0] * _KINDS, [0.0] * _KINDS

    @property
    def ratio(self) -> float:
        """Seconds of a step as usual, over what it is known to cost."""
        return self._ratio

    def save(self) -> tuple[float, float]:
        """Return the pace and the step time of which it is, at most that of the warm-up."""
        return self._ratio, self._seconds

    def restore(self, saved: tuple[float, float]) -> None:
        """Go on with what was saved."""
        self._ratio, self._seconds = saved
        self.began = self._seconds > 0

    def count(self, kind: int, cost_seconds: float, pace_ratio: float, seconds: float) -> None:
        """Take what steps of a kind cost by what is known, at which pace now, and how long."""
        self.began = True
        now_seconds = cost_seconds * pace_ratio
        if self._seconds >= _WARM_UP_SECONDS:
            memory = _MEMORY_SECONDS
        else:
            memory = self._seconds
            self._seconds = min(self._seconds + now_seconds, _WARM_UP_SECONDS)
        self._ratio += now_seconds / (now_seconds + memory) * (pace_ratio - self._ratio)
        self._expected[kind] += cost_seconds * self._ratio
        self._taken[kind] += seconds

    def take(self) -> ExpectedSteps:
        """Return what was expected of all steps, and taken, since this was called last."""
        expected_ns, taken_ns = (
            tuple(round(seconds * 1e9) for seconds in sums)
            for sums in (self._expected, self._taken)
        )
        self._expected, self._taken = [0.0] * _KINDS, [0.0] * _KINDS
        return ExpectedSteps(expected_ns, taken_ns)
