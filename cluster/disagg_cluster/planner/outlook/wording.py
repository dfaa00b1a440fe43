"""Outlooks and back-tests as text tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from disagg_cluster.host.columns import columns
from disagg_cluster.planner.forecast.robust_slope import RobustSlope
from disagg_cluster.planner.forecast.trend import PhaseTrend, TrendDriver, UndecidedTrend
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.outlook.back_test import HorizonScore
from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.outlook.model_outlook import (
    ModelOutlook,
    PhaseOutlook,
    UndecidedHorizon,
)
from disagg_exporter.errors import escaped
from disagg_exporter.model import Phase

Scores = Sequence[HorizonScore | UndecidedHorizon]

_WORK = {"gpu_seconds": "GPU-seconds", "tokens": "tokens"}
_LEAST_SHOWN = 1e-6
"""Less than a millionth of a token per second is shown as 0."""
_DRIVERS = {
    "requests_per_second": "requests/s",
    "prompt_tokens_per_request": "prompt tokens a request",
    "output_tokens_per_request": "output tokens a request",
    "cached_prompt_share": "share of prompts that was cached",
}


def outlook_text(outlook: ModelOutlook) -> str:
    """One model: the trend, its drivers, and a line for each phase and horizon."""
    quantiles = outlook.phases[0].quantiles
    head = ("PHASE", "HORIZON", "AT (UTC)", *(_quantile(each) for each in quantiles))
    rows: list[tuple[str, ...]] = [head]
    for phase in outlook.phases:
        rows += _rows(phase)
    table = columns(rows, right=range(3, len(head)))
    return "\n".join([named(outlook.key), *_trend(outlook), "tokens/s:", table])


def back_test_text(key: LoadKey, phases: Sequence[tuple[Phase, Scores]]) -> str:
    """One model: errors of past forecasts of each phase."""
    rows: list[tuple[str, ...]] = [
        ("PHASE", "HORIZON", "MOMENTS", "ERROR", "LAST VALUE'S", "LOSS", "IN BAND", "SHOULD BE")
    ]
    for phase, scores in phases:
        rows += [(phase.value, duration(each.horizon_seconds), *_score(each)) for each in scores]
    return f"{named(key)}\n{columns(rows, right=range(2, 8))}"


def named(key: LoadKey) -> str:
    """Owner of a load in words, without the parts that its source does not name."""
    parts = (
        ("model", key.model_name),
        ("namespace", key.engine_namespace),
        ("cluster", key.cluster),
    )
    return ", ".join(f"{what} {escaped(name)}" for what, name in parts if name) or "all requests"


def clock(seconds: float) -> str:
    """Format a Unix time to the minute, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _rows(phase: PhaseOutlook) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    if (last := phase.last_known) is not None:
        middle = ["" if each != 0.5 else amount(last[1]) for each in phase.quantiles]
        rows.append((phase.phase.value, "last", clock(last[0]), *middle))
    for each in phase.horizons:
        ahead = duration(each.horizon_seconds)
        if isinstance(each, UndecidedHorizon):
            rows.append((phase.phase.value, ahead, f"undecided: {each.why}"))
        else:
            loads = map(amount, each.tokens_per_second)
            rows.append((phase.phase.value, ahead, clock(each.at_seconds), *loads))
    if phase.forecast is not None:
        seasons = " and ".join(phase.forecast.seasons) or "none that made past errors smaller"
        rows.append((phase.phase.value, "season", seasons))
    return rows


def _trend(outlook: ModelOutlook) -> list[str]:
    trend = outlook.trend
    if isinstance(trend, UndecidedTrend):
        return [f"trend undecided: {trend.why}"]
    return [_verdict(trend, _WORK[outlook.work]), *map(_driver, trend.drivers)]


def _verdict(trend: PhaseTrend, work: str) -> str:
    change = trend.share_change_per_hour
    return (
        f"{trend.verdict}: prefill has {trend.prefill_share:.0%} of the {work}, "
        f"{_points(change.middle)} points an hour{_interval(change)}"
    )


def _driver(driver: TrendDriver) -> str:
    change = driver.change_per_hour
    words = _DRIVERS.get(driver.name, driver.name.replace("_", " "))
    size = f"{amount(driver.level)}, {_points(change.middle)} % an hour"
    return f"  {words}: {size}{_interval(change)}"


def _interval(change: RobustSlope) -> str:
    sure = "" if change.sure else ", direction not sure"
    return f" (90 %: {_points(change.low)} to {_points(change.high)}{sure})"


def _points(ratio: float) -> str:
    """Format a change in hundredths, with a sign unless it rounds to 0."""
    points = f"{100 * ratio:+.1f}"
    return "0.0" if points in ("+0.0", "-0.0") else points


def _score(score: HorizonScore | UndecidedHorizon) -> tuple[str, ...]:
    if isinstance(score, UndecidedHorizon):
        return (f"undecided: {score.why}",)
    return (
        str(score.origins),
        _percent(score.error_ratio),
        _percent(score.last_value_error_ratio),
        "-" if score.pinball_ratio is None else f"{score.pinball_ratio:.2f}",
        _percent(score.covered_ratio),
        _percent(score.band),
    )


def _quantile(quantile: float) -> str:
    return f"{100 * quantile:g} %"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def amount(value: float) -> str:
    """Format with at least three significant digits and no unneeded decimals."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= _LEAST_SHOWN else "0"
