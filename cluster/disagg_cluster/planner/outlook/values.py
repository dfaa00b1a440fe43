"""Outlooks and back-tests as JSON values: stable names with units, times with zone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disagg_cluster.host.spans import timestamp
from disagg_cluster.planner.forecast.robust_slope import RobustSlope
from disagg_cluster.planner.forecast.trend import PhaseTrend, UndecidedTrend
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.outlook.back_test import HorizonScore
from disagg_cluster.planner.outlook.model_outlook import (
    HorizonLoad,
    ModelOutlook,
    PhaseOutlook,
    UndecidedHorizon,
)
from disagg_exporter.model import Phase

Value = Mapping[str, object]


def outlook_value(outlook: ModelOutlook) -> Value:
    """One model; undecided parts have the reason in `undecided` in place of figures."""
    return {
        **key_value(outlook.key),
        "phases": {each.phase.value: _phase(each) for each in outlook.phases},
        "trend": _trend(outlook.trend, outlook.work),
    }


def back_test_value(
    key: LoadKey, phases: Sequence[tuple[Phase, Sequence[HorizonScore | UndecidedHorizon]]]
) -> Value:
    """Scores of one model by phase and horizon."""
    return {
        **key_value(key),
        "phases": {phase.value: [_score(each) for each in scores] for phase, scores in phases},
    }


def key_value(key: LoadKey) -> Value:
    """Owner of a load, by the labels of our metrics."""
    return {
        "cluster": key.cluster,
        "model_name": key.model_name,
        "engine_namespace": key.engine_namespace,
    }


def _phase(phase: PhaseOutlook) -> Value:
    last, made = phase.last_known, phase.forecast
    return {
        "last": None
        if last is None
        else {"time": timestamp(last[0]), "tokens_per_second": last[1]},
        "step_seconds": phase.series.step_seconds,
        "observations": phase.series.known,
        "seasons": [] if made is None else list(made.seasons),
        "horizons": [_horizon(each, phase.quantiles) for each in phase.horizons],
    }


def _horizon(horizon: HorizonLoad | UndecidedHorizon, quantiles: Sequence[float]) -> Value:
    ahead = {"horizon_seconds": horizon.horizon_seconds}
    if isinstance(horizon, UndecidedHorizon):
        return {**ahead, "undecided": horizon.why, "reason": horizon.reason.value}
    loads = zip(quantiles, horizon.tokens_per_second, strict=True)
    return {
        **ahead,
        "time": timestamp(horizon.at_seconds),
        "tokens_per_second": {f"{quantile:g}": load for quantile, load in loads},
    }


def _trend(trend: PhaseTrend | UndecidedTrend, work: str) -> Value:
    if isinstance(trend, UndecidedTrend):
        return {"undecided": trend.why}
    return {
        "verdict": trend.verdict.value,
        "work": work,
        "prefill_share_ratio": trend.prefill_share,
        "share_change_per_hour": _slope(trend.share_change_per_hour),
        "drivers": [
            {
                "name": each.name,
                "level": each.level,
                "relative_change_per_hour": _slope(each.change_per_hour),
            }
            for each in trend.drivers
        ],
    }


def _slope(slope: RobustSlope) -> Value:
    return {"low": slope.low, "middle": slope.middle, "high": slope.high, "sure": slope.sure}


def _score(score: HorizonScore | UndecidedHorizon) -> Value:
    ahead = {"horizon_seconds": score.horizon_seconds}
    if isinstance(score, UndecidedHorizon):
        return {**ahead, "undecided": score.why, "reason": score.reason.value}
    return {
        **ahead,
        "moments": score.origins,
        "error_ratio": score.error_ratio,
        "last_value_error_ratio": score.last_value_error_ratio,
        "pinball_ratio": score.pinball_ratio,
        "covered_ratio": score.covered_ratio,
        "band_ratio": score.band,
    }
