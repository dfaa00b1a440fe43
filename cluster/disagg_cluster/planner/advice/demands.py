"""The inputs of a plan, from history, the planner file and what engines have learned."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.host.spans import duration_text
from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.capacity.learned.request_shape import SHAPE_SECONDS
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.capacity.request_mix import MOST_TOKENS, RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.forecast.driver_shifts import driver_shifts
from disagg_cluster.planner.forecast.forecast_error import (
    ForecastError,
    PastForecast,
    forecast_error,
)
from disagg_cluster.planner.forecast.forecaster import Forecasting, forecast
from disagg_cluster.planner.forecast.load_forecast import LoadForecast, UndecidedForecast
from disagg_cluster.planner.forecast.paths import LoadPaths, forecast_paths
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.plan.model_demand import ModelDemand
from disagg_cluster.planner.plan.worker_option import WorkerOption
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import ModelSection, WorkerSection
from disagg_exporter.model import Role

HORIZONS_SECONDS = (86_400.0, 21_600.0, 3600.0, 900.0)
"""Horizon of a plan: the first of these for which the history is long enough."""
_ERROR_ORIGINS = 8
_ERROR_QUANTILES = (0.5, 0.9)
_ERROR_LASTS_SECONDS = 3600.0
_RECENT_SECONDS = 3600.0
_LONGEST_SILENCE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class LoadScale:
    """A change of load to assume: factors of the number of requests and of their lengths.

    `hit_rate` is the share of each prompt that a cache has, None for the present share.
    `prompt_length` is for the whole prompt, including what is cached of it.
    """

    requests: float = 1.0
    prompt_length: float = 1.0
    output_length: float = 1.0
    hit_rate: float | None = None


UNSCALED = LoadScale()


class DemandBuilder:
    """Makes the demands of a plan; caches the capacities that it computed for the next one.

    Args:
        config: The planner file.
        forecasting: Forecasts the present loads.
    """

    def __init__(self, config: PlannerConfig, forecasting: Forecasting = forecast) -> None:
        self._config = config
        self._forecasting = forecasting
        self._options: dict[tuple[object, ...], WorkerOption] = {}
        self._learned: dict[tuple[CostKey, Targets, float], WorkerOption] = {}
        self._errors: dict[LoadKey, tuple[float, ForecastError | None]] = {}

    def keep_only(self, keys: Set[LoadKey]) -> None:
        """Drop what is cached for all other models: they are gone."""
        models = {(key.model_name, key.engine_namespace) for key in keys}
        self._errors = {key: each for key, each in self._errors.items() if key in keys}
        self._learned = {
            place: each
            for place, each in self._learned.items()
            if (place[0].model_name, place[0].engine_namespace) in models
        }

    def demand(
        self, history: LoadHistory, engines: ClusterEngines, scale: LoadScale = UNSCALED
    ) -> ModelDemand:
        """The demand of one model. If no running engine is known, those of the planner file count.

        If any engine of the cluster is known, a model without a known engine has none.
        """
        key = history.key
        section = self._config.of_model(key.model_name, key.engine_namespace)
        paths = _paths(history, self._config.timing.lead_seconds, self._forecasting)
        base_mix, prompt_factor = _scaled(_measured_mix(history, engines), history, scale)
        if isinstance(paths, LoadPaths):
            paths = paths.scaled(scale.requests, prompt_factor, scale.output_length)
        return ModelDemand(
            key.model_name,
            key.engine_namespace,
            paths,
            self.options(key, engines),
            engines.of_model_or_file(key, section),
            base_mix,
            driver_shifts(_drivers(history)),
            self._known_error(history),
        )

    def options(self, key: LoadKey, engines: ClusterEngines) -> tuple[WorkerOption, ...]:
        """Workers that could serve a model; costs that engines learned precede those of tables."""
        section = self._config.of_model(key.model_name, key.engine_namespace)
        found: dict[tuple[Role, str, int], WorkerOption] = {}
        for kind in sorted(engines.of_model(key)):
            costs = engines.costs.get(kind)
            if costs is not None and not isinstance(costs, UndecidedCapacity):
                found[kind.role, kind.gpu_name, kind.gpus] = self._option(section, kind, costs)
        for worker in section.workers:
            place = (worker.role, worker.gpu_name, worker.gpus)
            if place not in found:
                found[place] = self._priced(section, worker)
        return tuple(found.values())

    def _option(self, section: ModelSection, kind: CostKey, costs: EngineCosts) -> WorkerOption:
        """The option of the last plan, as long as the engines have learned nothing new."""
        targets = self._config.targets_of(section)
        place = (kind, targets, section.transfer_seconds)
        known = self._learned.get(place)
        if known is None or known.costs != costs:
            known = WorkerOption(kind.role, costs, targets, section.transfer_seconds)
            self._learned[place] = known
        return known

    def _priced(self, section: ModelSection, worker: WorkerSection) -> WorkerOption:
        targets = self._config.targets_of(section)
        key = (worker, targets, section.transfer_seconds)
        if key not in self._options:
            self._options[key] = WorkerOption(
                worker.role, worker.costs(), targets, section.transfer_seconds
            )
        return self._options[key]

    def _known_error(self, history: LoadHistory) -> ForecastError | None:
        """The error, computed once an hour, or when the clock was set back: it takes long."""
        end = history.output_tokens.end_seconds
        made, error = self._errors.get(history.key, (-np.inf, None))
        if not 0 <= end - made < _ERROR_LASTS_SECONDS:
            made, error = end, self._error(history.output_tokens)
            self._errors[history.key] = made, error
        return error

    def _error(self, series: LoadSeries) -> ForecastError | None:
        """Error of forecasts repeated a lead time ahead, spread over the history's second half."""
        ahead = max(1, round(self._config.timing.lead_seconds / series.step_seconds))
        length = len(series.values)
        made = []
        for origin in np.linspace(length // 2, length - ahead, _ERROR_ORIGINS).astype(int):
            known = LoadSeries(series.start_seconds, series.step_seconds, series.values[:origin])
            past = forecast(known, ahead, _ERROR_QUANTILES)
            if isinstance(past, LoadForecast):
                at_seconds = known.end_seconds + (ahead - 1) * series.step_seconds
                median, high = (float(past.path(each)[-1]) for each in _ERROR_QUANTILES)
                made.append(PastForecast(known.end_seconds, at_seconds, median, high))
        return forecast_error(made, series, _ERROR_QUANTILES[-1])


def _paths(
    history: LoadHistory, lead_seconds: float, forecasting: Forecasting
) -> LoadPaths | UndecidedForecast:
    """Futures of the load; none if the last samples are too old for a plan to be in time."""
    requests, step = history.requests, history.prompt_tokens.step_seconds
    if requests is None:
        return UndecidedForecast("how many requests arrive is not known")
    drivers = (requests, history.prompt_tokens, history.output_tokens)
    silent_seconds = max(each.silent_seconds for each in drivers)
    if max(lead_seconds, _LONGEST_SILENCE_SECONDS, step) < silent_seconds < np.inf:
        return UndecidedForecast(f"nothing is known of the last {duration_text(silent_seconds)}")
    made: LoadPaths | UndecidedForecast = UndecidedForecast("the history has too long steps")
    for horizon in HORIZONS_SECONDS:
        if horizon < step:
            break
        made = forecast_paths(*drivers, round(horizon / step), forecasting=forecasting)
        if isinstance(made, LoadPaths):
            break
    return made


def recent_base_mix(history: LoadHistory) -> RequestMix:
    """Recent requests apart from their number and lengths: the cached part of prompts."""
    requests, cached = history.requests, history.cached_tokens
    if requests is None or cached is None:
        return RequestMix(1.0, 1.0, 1.0)
    steps = max(1, int(_RECENT_SECONDS / requests.step_seconds))
    known = np.isfinite(requests.values[-steps:]) & np.isfinite(cached.values[-steps:])
    arrived = float(requests.values[-steps:][known].sum())
    cached_tokens = float(cached.values[-steps:][known].sum())
    cached_each = min(cached_tokens / arrived, MOST_TOKENS) if arrived > 0 else 0.0
    return RequestMix(1.0, 1.0, 1.0, cached_tokens=cached_each)


def _measured_mix(history: LoadHistory, engines: ClusterEngines) -> RequestMix:
    """The same, with the measured shape of recent requests."""
    mix, requests = recent_base_mix(history), history.requests
    shape = engines.shapes.get((history.key.model_name, history.key.engine_namespace))
    if shape is None or requests is None:
        return mix
    steps = max(1, round(SHAPE_SECONDS / requests.step_seconds))
    drivers = (requests, history.prompt_tokens, history.output_tokens)
    recent = np.stack([each.values[-steps:] for each in drivers])
    arrived, prompts, outputs = recent[:, np.isfinite(recent).all(axis=0)].sum(axis=1)
    if not arrived > 0:
        return mix
    arrived_requests = arrived * requests.step_seconds
    return shape.of(mix, prompts / arrived, outputs / arrived, arrived_requests)


def _scaled(mix: RequestMix, history: LoadHistory, scale: LoadScale) -> tuple[RequestMix, float]:
    """Requests after the assumed change, and the factor of a prompt's tokens to compute."""
    cached = min(mix.cached_tokens * scale.prompt_length, MOST_TOKENS)
    if scale.hit_rate is None or history.requests is None:
        return replace(mix, cached_tokens=cached), scale.prompt_length
    steps = max(1, int(_RECENT_SECONDS / history.requests.step_seconds))
    requests, prompts = (each.values[-steps:] for each in (history.requests, history.prompt_tokens))
    known = np.isfinite(requests) & np.isfinite(prompts)
    computed = float(prompts[known].sum() / max(requests[known].sum(), 1e-12))
    if not computed > 0:
        return replace(mix, cached_tokens=cached), scale.prompt_length
    whole = (computed + mix.cached_tokens) * scale.prompt_length
    return (
        replace(mix, cached_tokens=min(whole * scale.hit_rate, MOST_TOKENS)),
        whole * (1 - scale.hit_rate) / computed,
    )


def _drivers(history: LoadHistory) -> dict[str, tuple[str, LoadSeries, LoadSeries | None]]:
    requests = history.requests
    if requests is None:
        return {}
    return {
        "requests": ("a second", requests, None),
        "prompt length": ("tokens", history.prompt_tokens, requests),
        "output length": ("tokens", history.output_tokens, requests),
    }
