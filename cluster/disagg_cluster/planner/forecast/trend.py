"""Which phase dominates the load, how that changes, and what drives the change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from disagg_cluster.planner.forecast.robust_slope import LEAST_POINTS, RobustSlope, robust_slope
from disagg_cluster.planner.history.load_series import Floats, LoadSeries

HOUR_SECONDS = 3600.0
WINDOW_SECONDS = 6 * HOUR_SECONDS
HEAVY_SHARE = 0.6
"""A load is heavy in a phase that has at least this share of the work."""
SHIFT_PER_WINDOW = 0.1
"""Least change of the share over the window that counts as shifting."""
_BINS = 24


class TrendVerdict(StrEnum):
    """Which phase dominates recent work."""

    PREFILL_HEAVY = "prefill-heavy"
    DECODE_HEAVY = "decode-heavy"
    BALANCED = "balanced"
    SHIFTING = "shifting"


@dataclass(frozen=True, slots=True)
class TrendDriver:
    """A component of the load: its present level and its relative change per hour."""

    name: str
    level: float
    change_per_hour: RobustSlope


@dataclass(frozen=True, slots=True)
class PhaseTrend:
    """The verdict, the share of prefill in the work, the share's change per hour, and its drivers.

    `drivers` are sorted by how fast they change; those whose direction is certain come first.
    """

    verdict: TrendVerdict
    prefill_share: float
    share_change_per_hour: RobustSlope
    drivers: tuple[TrendDriver, ...]


@dataclass(frozen=True, slots=True)
class UndecidedTrend:
    """Why there is no verdict."""

    why: str


def phase_trend(
    prefill: LoadSeries,
    decode: LoadSeries,
    drivers: dict[str, tuple[LoadSeries, LoadSeries | None]],
    window_seconds: float = WINDOW_SECONDS,
) -> PhaseTrend | UndecidedTrend:
    """Trend of prefill and decode work, in the same unit, over the last window.

    Prefer GPU-seconds where they are known: a prompt token costs far less than an output token.

    Args:
        prefill: Work of prefill.
        decode: Work of decode.
        drivers: By name: a load and an optional divisor. A prompt's length is prompt tokens divided
            by requests.
        window_seconds: How far back.
    """
    end = max(prefill.end_seconds, decode.end_seconds)
    times = (np.arange(_BINS) + 0.5) * window_seconds / _BINS / HOUR_SECONDS

    def binned(series: LoadSeries) -> Floats:
        return _binned(series, end - window_seconds, window_seconds)

    of_prefill, of_decode = binned(prefill), binned(decode)
    total = of_prefill + of_decode
    share = _quotient(of_prefill, total)
    change = robust_slope(times, share)
    if change is None:
        return UndecidedTrend(_too_few(share, total, window_seconds))
    found = []
    for name, (load, per) in drivers.items():
        below = np.ones(_BINS) if per is None else binned(per)
        size = _quotient(binned(load), below)
        driver = _driver(name, times, size)
        if driver is not None:
            found.append(driver)
    found.sort(key=lambda each: (not each.change_per_hour.sure, -abs(each.change_per_hour.middle)))
    level = _present(share)
    hours = window_seconds / HOUR_SECONDS
    return PhaseTrend(_verdict(level, change, hours), level, change, tuple(found))


def _too_few(share: Floats, total: Floats, window_seconds: float) -> str:
    """Why there is no trend: an idle model is known to be idle."""
    known, busy = int(np.isfinite(total).sum()), int(np.isfinite(share).sum())
    some = (
        f"work of both phases is known in {known}"
        if known < LEAST_POINTS
        else f"there was work in {busy}"
    )
    return (
        f"{some} of the last {_BINS} windows of {window_seconds / _BINS / 60:g} minutes; "
        f"a trend needs {LEAST_POINTS}"
    )


def _verdict(share: float, change: RobustSlope, hours: float) -> TrendVerdict:
    if change.sure and abs(change.middle) * hours >= SHIFT_PER_WINDOW:
        return TrendVerdict.SHIFTING
    if share >= HEAVY_SHARE:
        return TrendVerdict.PREFILL_HEAVY
    if share <= 1 - HEAVY_SHARE:
        return TrendVerdict.DECODE_HEAVY
    return TrendVerdict.BALANCED


def _driver(name: str, times: Floats, size: Floats) -> TrendDriver | None:
    """Relative change, so that requests and lengths compare; None where it was nothing or unknown.

    It is relative to the median over the window, or to the mean if it was mostly 0.
    """
    if not np.isfinite(size).any():
        return None
    usual = float(np.nanmedian(size)) or float(np.nanmean(size))
    if not usual > 0:
        return None
    change = robust_slope(times, size / usual)
    return None if change is None else TrendDriver(name, _present(size), change)


def _present(of: Floats) -> float:
    """Median of the last quarter of the window, or of all of it if that is not known."""
    recent = of[-_BINS // 4 :]
    return float(np.nanmedian(recent if np.isfinite(recent).any() else of))


def _binned(series: LoadSeries, start_seconds: float, window_seconds: float) -> Floats:
    """Means over equal parts of a window; NaN where nothing is known."""
    at = series.start_seconds + series.step_seconds * (np.arange(len(series.values)) + 0.5)
    bins = np.floor((at - start_seconds) / window_seconds * _BINS).astype(np.int64)
    inside = (bins >= 0) & (bins < _BINS) & np.isfinite(series.values)
    counts = np.bincount(bins[inside], minlength=_BINS)
    sums = np.bincount(bins[inside], weights=series.values[inside], minlength=_BINS)
    return _quotient(sums.astype(np.float64), counts.astype(np.float64))


def _quotient(above: Floats, below: Floats) -> Floats:
    """`above / below`; NaN where `below` is not positive, or next to nothing."""
    found = np.full(len(above), np.nan)
    with np.errstate(over="ignore"):
        np.divide(above, below, out=found, where=below > 0)
    return np.where(np.isfinite(found), found, np.nan)
