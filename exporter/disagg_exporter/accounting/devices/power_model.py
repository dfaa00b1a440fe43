"""The power that each use of a device draws, learned from its own readings (A10).

During prefill a GPU draws up to its limit; during decode it waits for memory and draws less. So
energy divided by time alone attributes too little to prefill and too much to decode. Where the mix
of uses changes from window to window, the power of each follows by least squares of joules on
seconds.

Drivers' energy counters lag by some tenths of a second, so that the energy of one phase appears
while the next one runs. All lags are tried, and the one that predicts the counter best is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from disagg_exporter.accounting.devices.use_trail import LONGEST_LAG_NS
from disagg_exporter.accounting.intervals.row_queue import Flags, Floats
from disagg_exporter.attribution.cost_model.nnls import solve_each
from disagg_exporter.model import Use
from disagg_exporter.model.checkpoints import PowerCheckpoint

WINDOW_SECONDS = 0.25
"""The length of one observation. If shorter, the granularity of the driver's total (which moves
some 10 to 50 times a second) is noise; if longer, all windows hold the same mix."""

LEAST_WINDOWS = 60
"""Windows that must be predicted before any watts are reported."""

LAGS_NS = tuple(range(0, LONGEST_LAG_NS + 1, 50_000_000))
"""The counter's possible lags; as fine as it is usually read."""

_HALF_LIFE_WINDOWS = 7200
_KEPT = 0.5 ** (1 / _HALF_LIFE_WINDOWS)
# The prior (the watts that time alone assumes) weighs as much as half a second of each use.
_PRIOR_SECONDS = 0.5
# The squared error of the prediction, over that of time alone, above which time alone is used.
_MOST_OF_TIME_ERROR = 0.97
# An error beyond three times the usual one counts as three times: a reading may be absurd.
_LARGEST_ERROR = 3.0
# A lag explains the energy as well if its error exceeds the least by at most a tenth, plus 0.04 of
# that of time alone. If such lags' watts differ by more than 0.15 of the highest, none is used.
_AS_WELL, _AS_WELL_OF_TIME = 0.1, 0.04
_CLEARLY_OTHER = 0.15
# No GPU draws more: in a window above this the counter jumped.
_MOST_WATTS = 10_000.0
# Lower bound of each use's watts, relative to what time alone assumes: never zero, so that all
# energy can be divided.
_LEAST_OF_MEAN = 0.01
_TINY = 1e-300
# Half a minute: by then the estimates change slowly.
_MOST_BETWEEN_FITS = 120

# Unobserved and unattributed time are one use: busy with something unknown.
_USES = (Use.PREFILL, Use.DECODE, Use.IDLE, Use.UNATTRIBUTED)
_IDLE = _USES.index(Use.IDLE)
COLUMNS: Mapping[Use, int] = {
    **{use: column for column, use in enumerate(_USES)},
    Use.UNOBSERVED: _USES.index(Use.UNATTRIBUTED),
}
"""The column of `seconds` that holds a use."""


class PowerModel:
    """Mean watts by use of one device, from windows of its committed time.

    `watts` is None until they have predicted the energy of new windows better than one power for
    all work and the baseline for idle time, which is what time alone assumes. `lag_ns` is the
    counter's lag; None where several lags explain the energy as well but yield different watts, as
    when prefill and decode alternate at a fixed period.
    """

    def __init__(self) -> None:
        uses, lags = len(_USES), len(LAGS_NS)
        self.watts: tuple[float, ...] | None = None
        self.lag_ns: int | None = 0
        # For each lag: the sums over its windows, and the estimates from them.
        self._gram = np.zeros((lags, uses, uses))
        self._moments = np.zeros((lags, uses))
        self._window = np.zeros((lags, uses))
        self._window_joules = 0.0
        self._fitted: Floats | None = None
        self._by_time = np.zeros((lags, uses))
        self._errors = np.zeros((lags, 2))
        self._learned = self._predicted = self._next_fit = 0

    def by_use(self) -> dict[Use, float]:
        """Return the watts of both phases and of idle time; empty while they are unknown.

        A use observed for less than the prior's weight is absent.
        """
        if self.watts is None:
            return {}
        seen = self._seen(self._best())
        return {
            use: self.watts[column] for column, use in enumerate(_USES[: _IDLE + 1]) if seen[column]
        }

    def checkpoint(self) -> PowerCheckpoint | None:
        """Return what was learned at the counter's lag; None while no watts are reported."""
        if self.watts is None or self.lag_ns is None:
            return None
        lag = LAGS_NS.index(self.lag_ns)
        by_power, by_time = self._errors[lag].tolist()
        return PowerCheckpoint(
            self.lag_ns,
            self._predicted,
            tuple(self._gram[lag].ravel().tolist()),
            tuple(self._moments[lag].tolist()),
            (by_power, by_time),
        )

    def resume(self, before: PowerCheckpoint | None, baseline_watts: float | None) -> None:
        """Continue with what was learned before; other lags start with the error of time alone."""
        uses = len(_USES)
        if before is None or before.lag_ns not in LAGS_NS:
            return
        if (len(before.gram), len(before.moments)) != (uses**2, uses):
            return
        self._gram[:] = np.reshape(before.gram, (uses, uses))
        self._moments[:] = before.moments
        self._errors[:] = before.errors[1]
        self._errors[LAGS_NS.index(before.lag_ns)] = before.errors
        self._learned = self._predicted = before.predicted
        self._fit(baseline_watts)

    def learn(self, seconds: Floats, joules: Floats, baseline_watts: float | None) -> None:
        """Learn from consecutive intervals.

        `seconds` by lag (`LAGS_NS`), interval and use (`COLUMNS`): the uses of the interval when
        shifted back by the lag. `joules` has one value per interval.
        """
        self._learn_windows(*self._windows(seconds, joules))
        if self._learned >= self._next_fit:
            self._fit(baseline_watts)

    def _windows(self, seconds: Floats, joules: Floats) -> tuple[Floats, Floats]:
        """Return the complete windows; the remainder is kept for the next intervals.

        They are seconds by lag, window and use, and the joules of each window.
        """
        so_far = np.concatenate((self._window[:, None], seconds), axis=1)
        used = np.append(self._window_joules, joules)
        edges, length = [0], 0.0
        for row, each in enumerate(so_far[0].sum(axis=1).tolist(), start=1):
            length += each
            if length >= WINDOW_SECONDS:
                edges.append(row)
                length = 0.0
        end = edges.pop()
        self._window = so_far[:, end:].sum(axis=1)
        self._window_joules = float(used[end:].sum())
        if not edges:
            return so_far[:, :0], used[:0]
        return np.add.reduceat(so_far[:, :end], edges, axis=1), np.add.reduceat(used[:end], edges)

    def _learn_windows(self, seconds: Floats, joules: Floats) -> None:
        lengths = seconds[0].sum(axis=1)
        sound = joules <= _MOST_WATTS * lengths
        count = int(sound.sum())
        # The noise of a window's energy grows with the square root of its length.
        roots = np.sqrt(lengths[sound])
        rows = seconds[:, sound] / roots[:, None]
        used = np.tile(joules[sound] / roots, (len(rows), 1))
        if self._fitted is not None:
            self._foresee(rows, used, np.stack((self._fitted, self._by_time), axis=-1))
        self._learned += count
        weighted = rows * (_KEPT ** np.arange(count - 1, -1, -1))[:, None]
        self._gram = self._gram * _KEPT**count + weighted.swapaxes(1, 2) @ rows
        self._moments = self._moments * _KEPT**count + (weighted * used[:, :, None]).sum(axis=1)

    def _foresee(self, rows: Floats, used: Floats, said: Floats) -> None:
        """Add up the prediction errors of each window, and limit outliers in `used`."""
        for window, errors in enumerate(np.moveaxis(used[:, :, None] - rows @ said, 1, 0)):
            if self._predicted >= LEAST_WINDOWS:
                most = _LARGEST_ERROR * np.sqrt(self._errors[:, 0] / self._weight())
                absurd = np.abs(errors[:, 0]) > most
                if absurd.any():
                    # As in Huber's estimator, the excess of a large error is not learned from.
                    used[:, window] -= errors[:, 0] - np.clip(errors[:, 0], -most, most)
                    most = np.where(absurd, most, np.inf)[:, None]
                    errors = np.clip(errors, -most, most)
            self._errors = self._errors * _KEPT + errors**2
            self._predicted += 1

    def _weight(self) -> float:
        return float((1 - _KEPT**self._predicted) / (1 - _KEPT))

    def _assume_time(self, baseline_watts: float | None) -> Floats:
        """Return the watts that time alone assumes: equal for all work, the baseline for idle."""
        # A row is seconds ÷ √length: the length-weighted sums are those of seconds and joules.
        whole = np.maximum(self._gram.sum(axis=(1, 2)), _TINY)
        mean = self._moments.sum(axis=1) / whole
        idle_part = np.minimum(self._gram[:, _IDLE].sum(axis=1) / whole, 1.0)
        idle = mean if baseline_watts is None else np.minimum(baseline_watts, mean)
        busy_part = np.maximum(1 - idle_part, _TINY)
        work = np.where(idle_part < 1, (mean - idle * idle_part) / busy_part, mean)
        watts = np.repeat(work[:, None], len(_USES), axis=1)
        watts[:, _IDLE] = idle
        return watts

    def _fit(self, baseline_watts: float | None) -> None:
        self._next_fit = self._learned + min(self._learned // 10, _MOST_BETWEEN_FITS)
        expected = self._by_time = self._assume_time(baseline_watts)
        grams = self._gram + _PRIOR_SECONDS * np.eye(len(_USES))
        moments = self._moments + _PRIOR_SECONDS * expected
        fitted = solve_each(grams, moments)
        least = _LEAST_OF_MEAN * expected.max(axis=1, keepdims=True)
        self._fitted = np.maximum(fitted, least)
        best, by_time = self._best(), float(self._errors[:, 1].min())
        by_power = float(self._errors[best, 0])
        earned = self._predicted >= LEAST_WINDOWS and by_power < _MOST_OF_TIME_ERROR * by_time
        found = self._fitted[best]
        usable = np.isfinite(found).all() and float(found.min()) > 0
        self.watts, self.lag_ns = None, 0
        if earned and usable:
            agree = self._agree(best, by_power * (1 + _AS_WELL) + _AS_WELL_OF_TIME * by_time)
            self.lag_ns = LAGS_NS[best] if agree else None
            self.watts = tuple(found.tolist()) if agree else None

    def _best(self) -> int:
        return int(self._errors[:, 0].argmin())

    def _seen(self, lag: int) -> Flags:
        seen: Flags = self._gram[lag].diagonal() > _PRIOR_SECONDS
        return seen

    def _agree(self, best: int, most_error: float) -> bool:
        """Return whether all lags up to this error yield much the same watts as the best one."""
        assert self._fitted is not None
        found = self._fitted[:, self._seen(best)]
        away = np.abs(found - found[best])[self._errors[:, 0] <= most_error]
        return float(away.max(initial=0)) <= _CLEARLY_OTHER * float(self._fitted[best].max())
