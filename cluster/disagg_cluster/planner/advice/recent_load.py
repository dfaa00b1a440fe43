"""The requests that a model had of late: how many, and what they are like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.history.load_series import Floats

_DAY_SECONDS = 86_400.0
_PEAK = 0.95
_MOST_TOKENS = 1e7
LEAST_REQUESTS = 30
"""Fewer say nothing of what requests are like."""


@dataclass(frozen=True, slots=True)
class RecentLoad:
    """Requests of the last day: their mean, and the number a second of its busy steps (95 %)."""

    mix: RequestMix
    peak_requests_per_second: float

    def times(self, factor: float) -> RecentLoad:
        """So many times the requests, each as they are."""
        return RecentLoad(
            self.mix.with_load(self.mix.requests_per_second * factor),
            self.peak_requests_per_second * factor,
        )


def recent_load(history: LoadHistory) -> RecentLoad | None:
    """Of the last day's steps of which requests and tokens are known; None of too few requests.

    A request counts as much as any other, so that busy hours say more of what requests are like.
    """
    if history.requests is None:
        return None
    steps = max(1, int(_DAY_SECONDS / history.requests.step_seconds))
    told = [history.requests, history.prompt_tokens, history.output_tokens]
    requests, prompts, outputs = (each.values[-steps:] for each in told)
    known = np.isfinite(requests) & np.isfinite(prompts) & np.isfinite(outputs)
    arrived = float(requests[known].sum())
    if not arrived * history.requests.step_seconds >= LEAST_REQUESTS:
        return None

    def of_each(tokens: Floats, among: Floats, least: float) -> float:
        return float(np.clip(tokens.sum() / among.sum(), least, _MOST_TOKENS))

    cached = 0.0
    if history.cached_tokens is not None:
        spared = history.cached_tokens.values[-steps:]
        both = known & np.isfinite(spared)
        if requests[both].sum() > 0:
            cached = of_each(spared[both], requests[both], 0.0)
    mix = RequestMix(
        float(requests[known].mean()),
        of_each(prompts[known], requests[known], 1.0),
        of_each(outputs[known], requests[known], 1.0),
        cached,
    )
    return RecentLoad(mix, float(np.quantile(requests[known], _PEAK)))
