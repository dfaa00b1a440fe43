"""Outlook of one model: load of each phase at some horizons, and the trend, or why unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from disagg_cluster.host.spans import duration_text
from disagg_cluster.planner.forecast.forecaster import Forecasting, forecast
from disagg_cluster.planner.forecast.load_forecast import (
    LEAST_OBSERVATIONS,
    QUANTILES,
    LoadForecast,
)
from disagg_cluster.planner.forecast.trend import PhaseTrend, UndecidedTrend, phase_trend
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.outlook.horizons import HORIZONS_SECONDS
from disagg_exporter.model import Phase


@dataclass(frozen=True, slots=True)
class HorizonLoad:
    """Load in the step at a horizon; the step begins at `at_seconds`.

    `tokens_per_second` are in the order of the outlook's quantiles.
    """

    horizon_seconds: float
    at_seconds: float
    tokens_per_second: tuple[float, ...]


class UndecidedReason(StrEnum):
    """Why a horizon is undecided, as a label value; `why` has the details."""

    LITTLE_HISTORY = "little_history"
    """Too few steps are known."""
    SHORT_HISTORY = "short_history"
    """The history is too short for the horizon."""
    NOTHING_LATELY = "nothing_lately"
    """The last known step is longer ago than the horizon."""
    LONG_STEPS = "long_steps"
    """The steps of the history are longer than the horizon."""


@dataclass(frozen=True, slots=True)
class UndecidedHorizon:
    """Why there is no forecast for a horizon."""

    horizon_seconds: float
    why: str
    reason: UndecidedReason = UndecidedReason.SHORT_HISTORY


@dataclass(frozen=True, slots=True, eq=False)
class PhaseOutlook:
    """Outlook of one phase of a model.

    `forecast` reaches to the furthest decided horizon; None if no horizon is decided.
    """

    phase: Phase
    series: LoadSeries
    quantiles: tuple[float, ...]
    horizons: tuple[HorizonLoad | UndecidedHorizon, ...]
    forecast: LoadForecast | None

    @property
    def last_known(self) -> tuple[float, float] | None:
        """When the last known step began, and its load; None if no step is known."""
        known = np.flatnonzero(np.isfinite(self.series.values))
        if not len(known):
            return None
        last = int(known[-1])
        began = self.series.start_seconds + last * self.series.step_seconds
        return began, float(self.series.values[last])


@dataclass(frozen=True, slots=True, eq=False)
class ModelOutlook:
    """Outlook of both phases of a model, and the trend of its work between them.

    `work` is the unit of the trend's shares: GPU-seconds, or tokens where those are not known.
    """

    key: LoadKey
    phases: tuple[PhaseOutlook, ...]
    trend: PhaseTrend | UndecidedTrend
    work: Literal["gpu_seconds", "tokens"]


def model_outlook(
    history: LoadHistory,
    horizons_seconds: Sequence[float] = HORIZONS_SECONDS,
    forecasting: Forecasting = forecast,
) -> ModelOutlook:
    """Compute the outlook from the end of a history."""
    prompt, output, requests = history.prompt_tokens, history.output_tokens, history.requests
    drivers: dict[str, tuple[LoadSeries, LoadSeries | None]] = {}
    if requests is not None:
        drivers = {
            "requests_per_second": (requests, None),
            "prompt_tokens_per_request": (prompt, requests),
            "output_tokens_per_request": (output, requests),
        }
    if (cached := history.cached_tokens) is not None:
        whole = replace(cached, values=cached.values + prompt.values)
        drivers["cached_prompt_share"] = (cached, whole)
    prefill, decode = history.prefill_gpus, history.decode_gpus
    work: Literal["gpu_seconds", "tokens"] = "gpu_seconds"
    if prefill is None or decode is None:
        prefill, decode, work = prompt, output, "tokens"
    return ModelOutlook(
        history.key,
        (
            phase_outlook(Phase.PREFILL, prompt, horizons_seconds, QUANTILES, forecasting),
            phase_outlook(Phase.DECODE, output, horizons_seconds, QUANTILES, forecasting),
        ),
        phase_trend(prefill, decode, drivers),
        work,
    )


def phase_outlook(
    phase: Phase,
    series: LoadSeries,
    horizons_seconds: Sequence[float],
    quantiles: Sequence[float] = QUANTILES,
    forecasting: Forecasting = forecast,
) -> PhaseOutlook:
    """Forecast once, as far as the history allows; nearer horizons are read from that forecast."""
    undecided: dict[float, UndecidedHorizon] = {}
    gap_seconds = series.silent_seconds
    for horizon in horizons_seconds:
        if (long := longer_steps(horizon, series)) is not None:
            undecided[horizon] = long
        elif horizon < gap_seconds < np.inf:
            why = f"nothing is known of the last {duration_text(gap_seconds)}"
            undecided[horizon] = UndecidedHorizon(horizon, why, UndecidedReason.NOTHING_LATELY)
    made: LoadForecast | None = None
    for horizon in sorted(set(horizons_seconds) - set(undecided), reverse=True):
        found = forecasting(series, _steps(horizon, series), quantiles)
        if isinstance(found, LoadForecast):
            made = found
            break
        few = series.known < LEAST_OBSERVATIONS
        reason = UndecidedReason.LITTLE_HISTORY if few else UndecidedReason.SHORT_HISTORY
        undecided[horizon] = UndecidedHorizon(horizon, found.why, reason)
    return PhaseOutlook(
        phase,
        series,
        tuple(quantiles),
        tuple(_horizon(made, horizon, undecided) for horizon in horizons_seconds),
        made,
    )


def longer_steps(horizon_seconds: float, series: LoadSeries) -> UndecidedHorizon | None:
    """The horizon as undecided if it is shorter than a step; None otherwise."""
    if horizon_seconds >= series.step_seconds:
        return None
    why = f"steps of {series.step_seconds:g} s are longer than that"
    return UndecidedHorizon(horizon_seconds, why, UndecidedReason.LONG_STEPS)


def _horizon(
    made: LoadForecast | None, horizon: float, undecided: dict[float, UndecidedHorizon]
) -> HorizonLoad | UndecidedHorizon:
    if horizon in undecided or made is None:
        return undecided[horizon]
    step = int(np.ceil(horizon / made.step_seconds)) - 1
    at_seconds = made.start_seconds + step * made.step_seconds
    loads = tuple(made.at(horizon, quantile) for quantile in made.quantiles)
    return HorizonLoad(horizon, at_seconds, loads)


def _steps(horizon_seconds: float, series: LoadSeries) -> int:
    return int(np.ceil(horizon_seconds / series.step_seconds))
