"""The recent requests of a model: their number and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.request_mix import MOST_TOKENS, RequestMix
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.history.load_series import Floats

_DAY_SECONDS = 86_400.0
_PEAK = 0.95
LEAST_REQUESTS = 30
"""Fewer are no evidence of what requests are like."""


@dataclass(frozen=True, slots=True)
class RecentLoad:
    """Requests of the last day: their mean, and the rate of its busy steps (95 % quantile)."""

    mix: RequestMix
    peak_requests_per_second: float

    def times(self, factor: float) -> RecentLoad:
        """The same requests at a rate multiplied by `factor`."""
        return RecentLoad(
            self.mix.with_load(self.mix.requests_per_second * factor),
            self.peak_requests_per_second * factor,
        )


def recent_load(history: LoadHistory) -> RecentLoad | None:
    """The load of last day's steps with known requests and tokens; None if requests are too few.

    All requests count equally, so busy hours weigh more in their mean lengths.
    """
    if history.requests is None:
        return None
    steps = max(1, int(_DAY_SECONDS / history.requests.step_seconds))
    drivers = [history.requests, history.prompt_tokens, history.output_tokens]
    requests, prompts, outputs = (each.values[-steps:] for each in drivers)
    known = np.isfinite(requests) & np.isfinite(prompts) & np.isfinite(outputs)
    arrived = float(requests[known].sum())
    if not arrived * history.requests.step_seconds >= LEAST_REQUESTS:
        return None

    def mean_tokens(tokens: Floats, requests: Floats, least: float) -> float:
        return float(np.clip(tokens.sum() / requests.sum(), least, MOST_TOKENS))

    cached = 0.0
    if history.cached_tokens is not None:
        cached_tokens = history.cached_tokens.values[-steps:]
        both = known & np.isfinite(cached_tokens)
        if requests[both].sum() > 0:
            cached = mean_tokens(cached_tokens[both], requests[both], 0.0)
    mix = RequestMix(
        float(requests[known].mean()),
        mean_tokens(prompts[known], requests[known], 1.0),
        mean_tokens(outputs[known], requests[known], 1.0),
        cached,
    )
    return RecentLoad(mix, float(np.quantile(requests[known], _PEAK)))
