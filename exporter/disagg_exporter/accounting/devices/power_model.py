"""What a second of each use of a device takes in watts, learned from its own readings (A10).

A GPU that prefills draws up to its limit; one that decodes waits for its memory and draws less. So
energy divided by time alone takes from prefill what it gives to decode. Where the mix of a
device's time changes from window to window, its energy says what each use drew: least squares of
joules on seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from disagg_exporter.accounting.intervals.row_queue import Floats
from disagg_exporter.attribution.cost_model.nnls import solve
from disagg_exporter.model import Use

WINDOW_SECONDS = 0.25
"""What is learned from at once. Shorter, and the edges of the driver's total (which moves some 10
to 50 times a second) count as noise; longer, and each window holds the same mix."""

LEAST_WINDOWS = 60
"""Before as many were predicted, nothing is said."""

_HALF_LIFE_WINDOWS = 7200
_KEPT = 0.5 ** (1 / _HALF_LIFE_WINDOWS)
# The watts expected before anything is known weigh as much as half a second of each use.
_PRIOR_SECONDS = 0.5
# The squared error of the prediction, over that of time alone, above which time alone is used.
_MOST_OF_TIME_ERROR = 0.97
# An error beyond three times the usual one counts as three times: a reading may be absurd.
_LARGEST_ERROR = 3.0
# No use of a device draws less than this part of the mean, so that each joule finds a place.
_LEAST_OF_MEAN = 0.01

# Unobserved and unattributed time are one: busy with something that is not known.
_USES = (Use.PREFILL, Use.DECODE, Use.IDLE, Use.UNATTRIBUTED)
_IDLE = _USES.index(Use.IDLE)
COLUMNS: Mapping[Use, int] = {
    **{use: column for column, use in enumerate(_USES)},
    Use.UNOBSERVED: _USES.index(Use.UNATTRIBUTED),
}
"""In which column of `seconds` a use stands."""


class PowerModel:
    """Mean watts by use of one device, from windows of its committed time.

    `watts` is None until they have predicted the energy of windows they had not seen better than
    one power for all work and the baseline for idle time, which is what time alone assumes.
    """

    def __init__(self) -> None:
        self.watts: tuple[float, ...] | None = None
        self._gram = np.zeros((len(_USES), len(_USES)))
        self._moments = np.zeros(len(_USES))
        self._window = np.zeros(len(_USES))
        self._window_joules = 0.0
        self._fitted: Floats | None = None
        self._errors = np.zeros(2)
        self._predicted = 0

    def by_use(self) -> dict[Use, float]:
        """Return the watts of both phases and of idle time; nothing while they are not known.

        Absent is a use of which less than the prior's weight was seen.
        """
        if self.watts is None:
            return {}
        return {
            use: self.watts[column]
            for column, use in enumerate(_USES[: _IDLE + 1])
            if self._gram[column, column] > _PRIOR_SECONDS
        }

    def learn(self, seconds: Floats, joules: Floats, baseline_watts: float | None) -> None:
        """Learn from intervals one after the other.

        `seconds` has a row an interval and a column a use (`COLUMNS`); `joules` one value each.
        """
        for window, used in self._windows(seconds, joules):
            self._learn_window(window, used, baseline_watts)
        self._fit(baseline_watts)

    def _windows(self, seconds: Floats, joules: Floats) -> Sequence[tuple[Floats, float]]:
        """Return the windows that are full now; what is left waits for the next intervals."""
        so_far = np.vstack([self._window, seconds])
        used = np.append(self._window_joules, joules)
        lengths = so_far.sum(axis=1)
        edges, length = [0], 0.0
        for row, each in enumerate(lengths.tolist(), start=1):
            length += each
            if length >= WINDOW_SECONDS:
                edges.append(row)
                length = 0.0
        full = [
            (so_far[first:last].sum(axis=0), float(used[first:last].sum()))
            for first, last in pairwise(edges)
        ]
        self._window = so_far[edges[-1] :].sum(axis=0)
        self._window_joules = float(used[edges[-1] :].sum())
        return full

    def _learn_window(self, seconds: Floats, joules: float, baseline_watts: float | None) -> None:
        length = float(seconds.sum())
        # The noise of a window's energy grows with the root of its length.
        row, used = seconds / np.sqrt(length), joules / np.sqrt(length)
        if self._fitted is not None:
            errors = used - np.array([self._fitted @ row, self._by_time(baseline_watts) @ row])
            if self._predicted >= LEAST_WINDOWS:
                most = _LARGEST_ERROR * float(np.sqrt(self._errors[0] / self._weight()))
                # As in Huber's estimator, the excess of a large error is not learned from.
                used -= errors[0] - float(np.clip(errors[0], -most, most))
                errors = np.clip(errors, -most, most) if abs(errors[0]) > most else errors
            self._errors = self._errors * _KEPT + errors**2
            self._predicted += 1
        self._gram = self._gram * _KEPT + np.outer(row, row)
        self._moments = self._moments * _KEPT + row * used

    def _weight(self) -> float:
        return float((1 - _KEPT**self._predicted) / (1 - _KEPT))

    def _by_time(self, baseline_watts: float | None) -> Floats:
        """Return the watts that time alone assumes: all work alike, and idle at the baseline."""
        # A row is seconds ÷ √length: the length-weighted sums are those of seconds and joules.
        whole = float(self._gram.sum())
        mean = float(self._moments.sum()) / whole if whole else 0.0
        idle_part = float(self._gram[_IDLE].sum()) / whole if whole else 0.0
        idle = mean if baseline_watts is None else min(baseline_watts, mean)
        work = (mean - idle * idle_part) / (1 - idle_part) if idle_part < 1 else mean
        watts = np.full(len(_USES), work)
        watts[_IDLE] = idle
        return watts

    def _fit(self, baseline_watts: float | None) -> None:
        expected = self._by_time(baseline_watts)
        gram = self._gram + _PRIOR_SECONDS * np.eye(len(_USES))
        moments = self._moments + _PRIOR_SECONDS * expected
        fitted = np.array(solve(gram.tolist(), moments.tolist()))
        self._fitted = np.maximum(fitted, _LEAST_OF_MEAN * expected.max())
        by_power, by_time = self._errors.tolist()
        earned = self._predicted >= LEAST_WINDOWS and by_power < _MOST_OF_TIME_ERROR * by_time
        usable = np.isfinite(self._fitted).all() and float(self._fitted.min()) > 0
        self.watts = tuple(self._fitted.tolist()) if earned and usable else None
