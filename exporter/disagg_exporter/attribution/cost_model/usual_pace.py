"""The expected time of an engine's steps: their costs at its pace of the last hours."""

from __future__ import annotations

from disagg_exporter.model import ExpectedSteps

# The first steps are warm-up; after that a slowdown must not count as usual.
_WARM_UP_SECONDS = 120.0
_MEMORY_SECONDS = 6 * 3600.0
# A hung step is not a pace: it counts as at most so many times the usual.
_MOST_PACE = 10.0
_KINDS = 3


class UsualPace:
    """The long-run ratio of steps' time to their costs, and sums of expected and actual time.

    After half an hour of steps the ratio includes 8 % of a change; an idle engine forgets nothing.
    In its first two minutes of steps it is the mean.
    """

    __slots__ = ("_expected", "_ratio", "_seconds", "_taken")

    def __init__(self) -> None:
        self._ratio, self._seconds = 1.0, 0.0
        self._expected, self._taken = [0.0] * _KINDS, [0.0] * _KINDS

    @property
    def ratio(self) -> float:
        """The usual duration of a step over its known cost."""
        return self._ratio

    def save(self) -> tuple[float, float]:
        """Return the pace and the seconds it covers, at most those of the warm-up."""
        return self._ratio, self._seconds

    def restore(self, saved: tuple[float, float]) -> None:
        """Continue with saved values."""
        self._ratio, self._seconds = saved

    def rescale(self, before: float, after: float) -> None:
        """Adapt to new costs (`before` to `after` for the same steps): the usual time stays."""
        if before > 0 and after > 0:
            self._ratio *= before / after

    def count(self, kind: int, cost_seconds: float, seconds: float) -> None:
        """Count steps of a kind, given their known cost and their duration."""
        usual_seconds = cost_seconds * self._ratio
        memory = self._seconds if self._seconds < _WARM_UP_SECONDS else _MEMORY_SECONDS
        # The very first step has no usual yet, but its cost: that hang must not become the usual.
        pace = min(seconds / usual_seconds, _MOST_PACE)
        self._ratio *= 1 + usual_seconds / (usual_seconds + memory) * (pace - 1)
        self._seconds = min(self._seconds + pace * usual_seconds, _WARM_UP_SECONDS)
        self._expected[kind] += cost_seconds * self._ratio
        self._taken[kind] += seconds

    def take(self) -> ExpectedSteps:
        """Return the expected and actual time of all steps since the last call."""
        expected_ns, taken_ns = (
            tuple(round(seconds * 1e9) for seconds in sums)
            for sums in (self._expected, self._taken)
        )
        self._expected, self._taken = [0.0] * _KINDS, [0.0] * _KINDS
        return ExpectedSteps(expected_ns, taken_ns)
