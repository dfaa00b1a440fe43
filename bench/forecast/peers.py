"""Forecasts by other methods; run in an environment that has their libraries.

`python peers.py IN.npz OUT.npz NAME`: IN holds, for each case, values, step, origins and longest
horizon; OUT gets the paths `[origin, quantile, step]` and the CPU seconds of each forecast. Nothing
of the project is imported, so its environment need not have the peers' libraries.

Their use follows the yardstick of the project's issue: point forecasts get empirical quantiles of
their own past errors, libraries keep their own intervals, and histories are capped where a library
would take minutes.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

QUANTILES = (0.05, 0.5, 0.9, 0.95)
_DAY_SECONDS = 86_400
_FEW_ERRORS = 8


def last_value(y, step, horizon):
    """The last value, with the quantiles of its past errors."""
    y = y[-2000:]
    return _with_errors([y[-1]] * horizon, [y[k:] - y[:-k] for k in range(1, horizon + 1)])


def moving_average(y, step, horizon):
    """The mean of the last half hour, or of six steps."""
    y = y[-2000:]
    width = max(1, min(len(y) // 3, round(max(1800, 6 * step) / step)))
    if len(y) < 120:
        width = min(width, 6)
    means = np.convolve(y, np.ones(width) / width, "valid")
    errors = [y[width - 1 + k :] - means[: max(0, len(means) - k)] for k in range(1, horizon + 1)]
    return _with_errors([means[-1]] * horizon, errors)


def same_time_yesterday(y, step, horizon):
    """The value a day before; with less than two days, the last value."""
    day = _day(y, step)
    if not day:
        return last_value(y, step, horizon)
    errors = (y[day:] - y[:-day])[-4000:]
    return _with_errors([y[len(y) - day + k % day] for k in range(horizon)], [errors] * horizon)


def auto_ets(y, step, horizon):
    """Exponential smoothing, its form chosen by information criterion."""
    from statsforecast.models import AutoETS

    return _library(AutoETS(season_length=1), y[-1000:], horizon)


def auto_theta(y, step, horizon):
    """The Theta method, its form chosen by error."""
    from statsforecast.models import AutoTheta

    y = y[-300:]
    return _library(AutoTheta(season_length=_day(y, step) or 1), y, horizon)


def auto_arima(y, step, horizon):
    """ARIMA, its order chosen by information criterion."""
    from statsforecast.models import AutoARIMA

    return _library(AutoARIMA(season_length=1), y[-200:], horizon)


def mstl(y, step, horizon):
    """Day and trend by LOESS, the trend continued by exponential smoothing."""
    from statsforecast.models import MSTL, AutoETS

    day = _day(y, step)
    if not day:
        return auto_ets(y, step, horizon)
    trend = AutoETS(season_length=1, model="ZZN")
    return _library(MSTL(season_length=day, trend_forecaster=trend), y, horizon)


def dynamo_default(y, step, horizon):
    """NVIDIA Dynamo's planner as it runs by default: order chosen on 5 points, then updated.

    It predicts one interval and no quantiles; here the same model predicts the whole path.
    """
    import pmdarima

    y = np.concatenate([y[:5], y[5:][-500:]])
    if (y == y[0]).all():
        return np.full((len(QUANTILES), horizon), y[0])
    start = 5 if (y[:5] != y[0]).any() else int(np.argmax(y != y[0])) + 5
    first, rest = y[:start], y[start:]
    how = {"suppress_warnings": True, "error_action": "ignore"}
    model, logged = pmdarima.auto_arima(first, **how), False
    if model.order[0] == 0 and model.order[2] == 0:
        model, logged = pmdarima.auto_arima(np.log1p(first), **how), True
    if len(rest):
        model.update(np.log1p(rest) if logged else rest)
    path = np.asarray(model.predict(n_periods=horizon), float)
    return np.tile(np.expm1(path) if logged else path, (len(QUANTILES), 1))


def dynamo_constant(y, step, horizon):
    """The last value, without a band."""
    return np.full((len(QUANTILES), horizon), y[-1])


PEERS: dict[str, Callable] = {
    "last value": last_value,
    "moving average": moving_average,
    "same time yesterday": same_time_yesterday,
    "AutoETS": auto_ets,
    "AutoTheta": auto_theta,
    "AutoARIMA": auto_arima,
    "MSTL": mstl,
    "Dynamo constant": dynamo_constant,
    "Dynamo default": dynamo_default,
}


def _day(y, step):
    day = round(_DAY_SECONDS / step)
    return day if len(y) >= 2 * day else 0


def _with_errors(points, errors):
    """Return each point with the quantiles of its errors; without a band if they are few."""
    columns = [
        point + (np.quantile(of, QUANTILES) if len(of) >= _FEW_ERRORS else np.zeros(4))
        for point, of in zip(points, errors, strict=True)
    ]
    return np.array(columns).T


def _library(model, y, horizon):
    levels = {quantile: round(abs(2 * quantile - 1) * 100) for quantile in QUANTILES}
    found = model.forecast(y=y, h=horizon, level=sorted({each for each in levels.values() if each}))
    return np.array(
        [
            found[f"{'hi' if quantile > 0.5 else 'lo'}-{level}" if level else "mean"]
            for quantile, level in levels.items()
        ]
    )


def main(source, target, name):
    """Forecast every case from every origin; where a library fails, use the last value."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    forecaster, arrays, out = PEERS[name], np.load(source), {}
    for case in sorted({key.split("/")[0] for key in arrays.files}, key=int):
        values, step = arrays[f"{case}/values"], int(arrays[f"{case}/step"])
        horizon, paths, cpu = int(arrays[f"{case}/longest"]), [], []
        for origin in arrays[f"{case}/origins"]:
            began = time.process_time()
            try:
                path = forecaster(values[:origin], step, horizon)
                if not np.isfinite(path).all():
                    raise ValueError("not finite")
            except Exception:  # noqa: BLE001 - any error of a library is a failed forecast
                path = np.full((len(QUANTILES), horizon), values[origin - 1])
            cpu.append(time.process_time() - began)
            paths.append(np.maximum(path, 0.0))
        out[f"{case}/paths"], out[f"{case}/cpu"] = np.array(paths), np.array(cpu)
    np.savez(target, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
