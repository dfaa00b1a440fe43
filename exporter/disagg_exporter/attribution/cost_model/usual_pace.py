"""What an engine's steps are held against: their costs at the pace that it has had for hours."""

from __future__ import annotations

from disagg_exporter.model import ExpectedSteps

# What is learned first is warm-up; from then on a slowdown must not pass for usual.
_WARM_UP_SECONDS = 120.0
_MEMORY_SECONDS = 6 * 3600.0
# One step that hung is no pace: it counts as so many times what is usual.
_MOST_PACE = 10.0
_KINDS = 3


class UsualPace:
    """What an engine's steps took in the long run over what they cost, and what they take now.

    After half an hour of steps 8 % of a change are in it; an engine that rests forgets nothing. In
    its first two minutes of steps it is the mean.
    """

    __slots__ = ("_expected", "_ratio", "_seconds", "_taken")

    def __init__(self) -> None:
        self._ratio, self._seconds = 1.0, 0.0
        self._expected, self._taken = [0.0] * _KINDS, [0.0] * _KINDS

    @property
    def ratio(self) -> float:
        """Seconds of a step as usual, over what it is known to cost."""
        return self._ratio

    def save(self) -> tuple[float, float]:
        """Return the pace, and the seconds of which it is, at most those of the warm-up."""
        return self._ratio, self._seconds

    def restore(self, saved: tuple[float, float]) -> None:
        """Go on with what was saved."""
        self._ratio, self._seconds = saved

    def rescale(self, before: float, after: float) -> None:
        """Take that the same steps are said to cost this and not that: what is usual stays."""
        if before > 0 and after > 0:
            self._ratio *= before / after

    def count(self, kind: int, cost_seconds: float, seconds: float) -> None:
        """Take what steps of a kind cost by what is known, and how long they took."""
        usual_seconds = cost_seconds * self._ratio
        memory = self._seconds if self._seconds < _WARM_UP_SECONDS else _MEMORY_SECONDS
        pace = min(seconds / usual_seconds, _MOST_PACE) if memory else seconds / usual_seconds
        self._ratio *= 1 + usual_seconds / (usual_seconds + memory) * (pace - 1)
        self._seconds = min(self._seconds + seconds, _WARM_UP_SECONDS)
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
