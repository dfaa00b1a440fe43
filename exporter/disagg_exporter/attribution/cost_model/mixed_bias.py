"""How far predictions of mixed steps are off as a whole, compared with those of pure steps."""

from __future__ import annotations

_MEMORY_STEPS = 100
# A hung step says nothing of a prediction: it counts as at most so many times the predicted.
_MOST_RATIO = 3.0

LearnedBias = tuple[float, float, float, float]
"""Recent seconds and predicted seconds of mixed steps, then of pure ones."""


class MixedBias:
    """The mean error of the predictions of recent mixed steps, beyond that of pure steps.

    Single steps vary by a tenth, which says nothing of costs. But if a hundred mixed steps in a row
    are longer than predicted while steps of one kind are not, what mixing costs is mistaken by as
    much: the fit has no price for it, or has never observed such mixtures.
    """

    __slots__ = ("_mixed", "_pure")

    def __init__(self) -> None:
        self._mixed, self._pure = (0.0, 0.0), (0.0, 0.0)

    def save(self) -> LearnedBias:
        """Return the sums."""
        return (*self._mixed, *self._pure)

    def restore(self, saved: LearnedBias) -> None:
        """Continue with saved sums."""
        self._mixed, self._pure = saved[:2], saved[2:]

    def count(self, seconds: float, predicted_seconds: float, *, mixed: bool) -> None:
        """Count a step and its prediction, both at the present pace."""
        before = self._mixed if mixed else self._pure
        kept = 1 - 1 / _MEMORY_STEPS
        taken = min(seconds, _MOST_RATIO * predicted_seconds)
        sums = before[0] * kept + taken, before[1] * kept + predicted_seconds
        if mixed:
            self._mixed = sums
        else:
            self._pure = sums

    @property
    def ratio(self) -> float:
        """By how much mixed steps are mistaken, as a part of their time; 0 before any."""
        mixed, pure = (
            seconds / predicted_seconds if predicted_seconds > 0 else None
            for seconds, predicted_seconds in (self._mixed, self._pure)
        )
        return 0.0 if mixed is None else abs(mixed / (pure or 1.0) - 1)
