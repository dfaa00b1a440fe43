"""Waiting time of prompts for engines that compute them in steps.

A first-come, first-served queue with k servers. The wait follows Sakasegawa's formula (1977, with
the Allen-Cunneen factor for arrivals and services that are not exponential), with an exponential
tail as in heavy traffic (Kingman 1962): P(wait > t) = P(wait > 0) exp(-t / w), where
P(wait > 0) = rho^(sqrt(2 (k + 1)) - 1) and w = (c_a² + c_s²) / 2 · S / (k (1 - rho)).
A request leaves with the step that computes the last token of its prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from disagg_cluster.planner.capacity.prompt_lengths import length_points
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.history.load_series import Floats

_SIZES = 20
_SAMPLED_STEPS = 12
_PLACES = (np.arange(5) + 0.5) / 5

StepSeconds = Callable[[float, float], float]
"""Time of a step, by the prompt tokens it computes and the earlier tokens each attends to."""


@dataclass(frozen=True, eq=False)
class PromptQueue:
    """Prompts of a mix, queued for engines of equal speed.

    Args:
        mix: The requests; the methods take their rate.
        step_tokens: Most prompt tokens in one step.
        step_seconds: Step times.
        sent_token_seconds: Transfer time of each token of a computed prompt, cached ones included.
    """

    mix: RequestMix
    step_tokens: float
    step_seconds: StepSeconds
    sent_token_seconds: float = 0.0
    service_seconds: float = field(init=False)
    _full_seconds: float = field(init=False)
    _step_sizes: Floats = field(init=False)
    _step_seconds: Floats = field(init=False)
    _alone_seconds: Floats = field(init=False)
    _sent_seconds: Floats = field(init=False)
    _sizes: Floats = field(init=False)
    _sized_seconds: Floats = field(init=False)

    def __post_init__(self) -> None:
        mix, most = self.mix, self.step_tokens
        set_once = object.__setattr__
        full_seconds = self.step_seconds(most, mix.attended_tokens)
        set_once(self, "_full_seconds", full_seconds)
        set_once(self, "service_seconds", mix.prompt_tokens * full_seconds / most)
        step_sizes = np.geomspace(1.0, most, _SIZES)
        set_once(self, "_step_sizes", step_sizes)
        seconds = [
            self.step_seconds(size, min(mix.cached_tokens + size / 2, mix.attended_tokens))
            for size in step_sizes
        ]
        set_once(self, "_step_seconds", np.array(seconds))
        lengths = length_points(mix.prompt_tokens, mix.prompt_dispersion)
        sizes = np.unique(np.geomspace(1.0, max(float(lengths[-1]), most, 2.0), _SIZES))
        set_once(self, "_sizes", sizes)
        sized = np.array([self._alone(float(size)) for size in sizes])
        set_once(self, "_sized_seconds", np.maximum.accumulate(sized))
        set_once(self, "_alone_seconds", np.interp(lengths, sizes, self._sized_seconds))
        sent = self.sent_token_seconds * (lengths + mix.cached_tokens)
        set_once(self, "_sent_seconds", sent)

    def utilization(self, requests_per_second: float, engines: int) -> float:
        """Load over the throughput of engines that always have prompts; from 1 the queue grows."""
        return requests_per_second * self.service_seconds / engines

    def late_share(self, requests_per_second: float, engines: int, within_seconds: float) -> float:
        """Share of requests whose prompt is computed and sent later than `within_seconds`."""
        used = self.utilization(requests_per_second, engines)
        if used >= 1:
            return 1.0
        until_sent_seconds = within_seconds - self._sent_seconds
        left_seconds = until_sent_seconds - self._alone_seconds
        mix = self.mix
        variation = (mix.arrival_dispersion + mix.prompt_dispersion) / 2
        waiting = used ** (np.sqrt(2 * (engines + 1)) - 1)
        mean_seconds = max(variation * self.service_seconds / (engines * (1 - used)), 1e-9)
        # Later prompts join its step: those that arrive while it waits, or as many as fit.
        wait_seconds = np.maximum(
            left_seconds / (1 + used), left_seconds - self._full_seconds * _PLACES[:, np.newaxis]
        )
        late = np.where(
            left_seconds < 0, 1.0, waiting * np.exp(-np.maximum(wait_seconds, 0.0) / mean_seconds)
        )
        # Under a light load it waits for the rest of the step in progress, then for its own.
        cycle_seconds = self._cycle_seconds(requests_per_second / engines)
        between = (1 + _PLACES[:, np.newaxis]) * cycle_seconds > until_sent_seconds
        return float(np.where(between, np.maximum(late, waiting), late).mean())

    def _cycle_seconds(self, requests_per_second: float) -> float:
        """Time of the smallest step that keeps up with the load of one engine."""
        rates = np.maximum.accumulate(self._step_sizes / self._step_seconds)
        tokens_per_second = requests_per_second * self.mix.prompt_tokens
        return float(np.interp(tokens_per_second, rates, self._step_seconds))

    def _alone(self, tokens: float) -> float:
        """Time of a prompt that has the engine to itself: full steps, and one for the rest."""
        cached, most = self.mix.cached_tokens, self.step_tokens
        full, rest = divmod(tokens, most)
        seconds = self.step_seconds(rest, cached + tokens - rest / 2) if rest else 0.0
        # Each full step attends to evenly more than the one before: a sample represents many.
        sampled = min(int(full), _SAMPLED_STEPS)
        for number in range(sampled):
            before = (number + 0.5) / sampled * full * most
            seconds += full / sampled * self.step_seconds(most, cached + before)
        return seconds
