"""Which phase dominates the load, how that changes, and what drives the change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from disagg_cluster.planner.forecast.robust_slope import LEAST_POINTS, RobustSlope, robust_slope
from disagg_cluster.planner.history.load_series import Floats, LoadSeries, quotient

HOUR_SECONDS = 3600.0
WINDOW_SECONDS = 6 * HOUR_SECONDS
HEAVY_SHARE = 0.6
"""A load is heavy in a phase that has at least this share of the work."""
SHIFT_PER_WINDOW = 0.1
"""Least change of the share over the window that counts as shifting."""
_BINS = 24
_BIN_SECONDS = WINDOW_SECONDS / _BINS


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
) -> PhaseTrend | UndecidedTrend:
    """Trend of prefill and decode work, in the same unit, over the last window.

    Prefer GPU-seconds where they are known: a prompt token costs far less than an output token.

    Args:
        prefill: Work of prefill.
        decode: Work of decode.
        drivers: By name: a load and an optional divisor. A prompt's length is prompt tokens divided
            by requests.
    """
    end = max(prefill.end_seconds, decode.end_seconds)
    times = np.asarray((np.arange(_BINS) + 0.5) * _BIN_SECONDS / HOUR_SECONDS, np.float64)

    def binned(series: LoadSeries) -> Floats:
        return series.binned(end - WINDOW_SECONDS, _BIN_SECONDS, _BINS)

    of_prefill, of_decode = binned(prefill), binned(decode)
    total = of_prefill + of_decode
    share = quotient(of_prefill, total)
    change = robust_slope(times, share)
    if change is None:
        return UndecidedTrend(_too_few(share, total))
    found = []
    for name, (load, per) in drivers.items():
        size = binned(load) if per is None else quotient(binned(load), binned(per))
        driver = _driver(name, times, size)
        if driver is not None:
            found.append(driver)
    found.sort(key=lambda each: (not each.change_per_hour.sure, -abs(each.change_per_hour.middle)))
    level = _present(share)
    return PhaseTrend(_verdict(level, change), level, change, tuple(found))


def _too_few(share: Floats, total: Floats) -> str:
    """Why there is no trend: an idle model is known to be idle."""
    known, busy = int(np.isfinite(total).sum()), int(np.isfinite(share).sum())
    some = (
        f"work of both phases is known in {known}"
        if known < LEAST_POINTS
        else f"there was work in {busy}"
    )
    return (
        f"{some} of the last {_BINS} windows of {_BIN_SECONDS / 60:g} minutes; "
        f"a trend needs {LEAST_POINTS}"
    )


def _verdict(share: float, change: RobustSlope) -> TrendVerdict:
    hours = WINDOW_SECONDS / HOUR_SECONDS
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
