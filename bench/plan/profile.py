"""Engines' capacities by the price table, past arrivals and forecasts, for use by rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from bench.plan.days import DISPERSION, HISTORY_DAYS, MINUTES, Day

from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.forecast.paths import LoadPaths, forecast_paths
from disagg_cluster.planner.history.load_series import Floats, LoadSeries
from disagg_cluster.planner.plan.worker_option import EngineCurve, WorkerOption
from disagg_exporter.model import Role

STEP_MINUTES = 5
HORIZON_STEPS = 36
FORECAST_MINUTES = 60
RECENT_MINUTES = 3

LIKE = RequestMix(1.0, 1.0, 1.0, prompt_dispersion=DISPERSION, output_dispersion=DISPERSION)


def worker_options(days: Sequence[Day]) -> list[tuple[WorkerOption, ...]]:
    """Return the prefill and decode option of each model, by the price table."""
    return [
        tuple(
            WorkerOption(role, day.served.costs(), day.served.targets, day.served.transfer_seconds)
            for role in (Role.PREFILL, Role.DECODE)
        )
        for day in days
    ]


def _forecast(day: Day, minute: int) -> LoadPaths:
    now = HISTORY_DAYS * MINUTES + minute
    series = [
        LoadSeries(
            -HISTORY_DAYS * MINUTES * 60.0,
            60.0 * STEP_MINUTES,
            of[:now].reshape(-1, STEP_MINUTES).mean(axis=1),
        )
        for of in (day.requests, day.prompt_tokens, day.output_tokens)
    ]
    found = forecast_paths(series[0], series[1], series[2], HORIZON_STEPS)
    if not isinstance(found, LoadPaths):
        raise SystemExit(found.why)
    return found


def _mix(day: Day, minutes: slice) -> RequestMix:
    requests = float(day.requests[minutes].mean())
    some = max(requests, 1e-9)
    return replace(
        LIKE,
        requests_per_second=requests,
        prompt_tokens=max(1.0, float(day.prompt_tokens[minutes].mean()) / some),
        output_tokens=max(1.0, float(day.output_tokens[minutes].mean()) / some),
    )


def last_minute(day: Day, minute: int, load: str) -> float:
    """Return a load of the minute that just ended."""
    values: Floats = getattr(day, load)
    return float(values[HISTORY_DAYS * MINUTES + minute - 1])


class Profile:
    """Engines' capacities by the price table, and past arrivals, for use by rules."""

    def __init__(self, days: Sequence[Day], options: Sequence[tuple[WorkerOption, ...]]) -> None:
        self.days = days
        self.options = options
        self._forecasts: dict[tuple[int, int], LoadPaths] = {}
        self.tokens_each: list[float] = []
        self.ratio: list[float] = []
        for number, day in enumerate(days):
            before = slice(0, HISTORY_DAYS * MINUTES)
            mix = _mix(day, before)
            prefill, decode = (self.rate_each(number, role, mix) for role in range(2))
            self.tokens_each.append(decode * mix.output_tokens)
            self.ratio.append(decode / prefill)

    def forecast(self, number: int, minute: int) -> LoadPaths:
        """Return futures of a model; arrivals depend on no rule, so each is made once."""
        if (number, minute) not in self._forecasts:
            self._forecasts[number, minute] = _forecast(self.days[number], minute)
        return self._forecasts[number, minute]

    def mix(self, number: int, minute: int, minutes: int) -> RequestMix:
        """Return the mean request of the last minutes."""
        now = HISTORY_DAYS * MINUTES + minute
        return _mix(self.days[number], slice(now - minutes, now))

    def rate_each(self, number: int, role: int, mix: RequestMix) -> float:
        """Return the most requests a second that one engine of many serves."""
        curve = self._curve(number, role, mix)
        # Requests of other lengths than the curve's weigh by the engines that they need.
        thousand = np.array([1000.0])
        engines = curve.engines(
            thousand, thousand * mix.prompt_tokens, thousand * mix.output_tokens
        )
        return 1000.0 / float(engines[0])

    def engines(self, number: int, role: int, mix: RequestMix) -> int:
        """Return the number of engines that meets the targets."""
        rate = np.array([mix.requests_per_second])
        curve = self._curve(number, role, mix)
        return int(curve.engines(rate, rate * mix.prompt_tokens, rate * mix.output_tokens)[0])

    def batch(self, number: int, minute: int) -> float:
        """Return a decode engine's largest batch at the lengths of the last five minutes."""
        mix = self.mix(number, minute, STEP_MINUTES)
        seconds = mix.output_tokens * self.days[number].served.targets.itl_seconds
        costs = self.options[number][1].costs
        kv_tokens = costs.shape.kv_tokens or np.inf
        by_rate = self.rate_each(number, 1, mix) * seconds
        return float(min(by_rate, kv_tokens / mix.context_tokens, costs.shape.max_num_seqs))

    def _curve(self, number: int, role: int, mix: RequestMix) -> EngineCurve:
        curve = self.options[number][role].curve(mix)
        if not isinstance(curve, EngineCurve):
            raise SystemExit(f"{self.days[number].served.name}: {curve.reason}")
        return curve


class Lookahead:
    """Futures of each model: made every hour, and at once when load exceeds the forecast's maximum.

    That maximum, the most of any future, is the 99 % quantile. In between, futures continue from
    the load of the last minutes.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._paths: dict[int, LoadPaths] = {}

    def paths(self, number: int, minute: int) -> LoadPaths:
        """Return the futures of a model at a minute of the day."""
        if self._is_due(number, minute):
            self._paths[number] = self._profile.forecast(number, minute)
        mix = self._profile.mix(number, minute, RECENT_MINUTES)
        rate = mix.requests_per_second
        return self._paths[number].renewed(
            minute * 60.0, rate, rate * mix.prompt_tokens, rate * mix.output_tokens
        )

    def _is_due(self, number: int, minute: int) -> bool:
        if number not in self._paths:
            return True
        if minute % STEP_MINUTES:
            return False
        paths = self._paths[number]
        day = self._profile.days[number]
        steps = int(minute * 60 - paths.start_seconds) // (60 * STEP_MINUTES)
        now = HISTORY_DAYS * MINUTES + minute
        return steps * STEP_MINUTES >= FORECAST_MINUTES or any(
            getattr(day, load)[now - STEP_MINUTES : now].mean()
            > getattr(paths, load)[:, steps - 1].max()
            for load in ("prompt_tokens", "output_tokens")
        )
