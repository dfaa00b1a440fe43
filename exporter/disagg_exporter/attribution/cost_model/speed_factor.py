"""How fast an engine is now, against what its steps are known to cost."""

from __future__ import annotations

_MEMORY_SECONDS = 40.0
_LIMIT = 4.0


class Pace:
    """A factor common to all steps: clocks, throttling, a neighbour on the same GPU.

    Brown's double exponential smoothing (R. G. Brown, Smoothing, Forecasting and Prediction of
    Discrete Time Series, 1963): it follows a steady drift without lagging behind it, which a
    plain mean does, and what it lags the costs would take up.
    """

    __slots__ = ("_mean", "_mean_of_means")

    def __init__(self) -> None:
        self._mean = self._mean_of_means = 1.0

    @property
    def ratio(self) -> float:
        """Seconds of a step now, over what it is known to cost."""
        ratio = 2 * self._mean - self._mean_of_means
        return max(min(ratio, _LIMIT), 1 / _LIMIT)

    def save(self) -> tuple[float, float]:
        """Return the mean and the mean of means."""
        return self._mean, self._mean_of_means

    def restore(self, saved: tuple[float, float]) -> None:
        """Go on with what was saved."""
        self._mean, self._mean_of_means = saved

    def follow(self, ratio: float, seconds: float) -> None:
        """Take one step: its length over its known cost, and its length."""
        part = seconds / (seconds + _MEMORY_SECONDS)
        self._mean += part * (ratio - self._mean)
        self._mean_of_means += part * (self._mean - self._mean_of_means)
