"""How long prompts wait before engines that compute them in steps.

A queue with k servers and first come, first served. The wait is that of Sakasegawa's formula (1977,
with the Allen-Cunneen factor for arrivals and services that are not exponential), its tail
exponential as in heavy traffic (Kingman 1962): P(wait > t) = P(wait > 0) exp(-t / w), where
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
_STEPS_TOLD = 12
_PLACES = (np.arange(5) + 0.5) / 5

StepSeconds = Callable[[float, float], float]
"""What a step takes, by the prompt tokens it computes and the earlier ones each attends to."""


@dataclass(frozen=True, eq=False)
class PromptQueue:
    """Prompts of a mix before engines of equal speed.

    Args:
        mix: The requests; how many there are is asked later.
        step_tokens: Prompt tokens of one step at most.
        step_seconds: What steps take.
        sent_token_seconds: What each token of a prompt takes on its way after it was computed,
            those that were cached included.
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
        taken = [
            self.step_seconds(size, min(mix.cached_tokens + size / 2, mix.attended_tokens))
            for size in step_sizes
        ]
        set_once(self, "_step_seconds", np.array(taken))
        lengths = length_points(mix.prompt_tokens, mix.prompt_dispersion)
        sizes = np.unique(np.geomspace(1.0, max(float(lengths[-1]), most, 2.0), _SIZES))
        set_once(self, "_sizes", sizes)
        sized = np.array([self._alone(float(size)) for size in sizes])
        set_once(self, "_sized_seconds", np.maximum.accumulate(sized))
        set_once(self, "_alone_seconds", np.interp(lengths, sizes, self._sized_seconds))
        sent = self.sent_token_seconds * (lengths + mix.cached_tokens)
        set_once(self, "_sent_seconds", sent)

    def utilization(self, requests_per_second: float, engines: int) -> float:
        """The load over what engines that never lack prompts compute; 1 and more never ends."""
        return requests_per_second * self.service_seconds / engines

    def late_share(self, requests_per_second: float, engines: int, within_seconds: float) -> float:
        """The share of requests whose prompt is computed, and sent, later than that."""
        used = self.utilization(requests_per_second, engines)
        if used >= 1:
            return 1.0
        until_sent_seconds = within_seconds - self._sent_seconds
        left_seconds = until_sent_seconds - self._alone_seconds
        mix = self.mix
        variation = (mix.arrival_dispersion + mix.prompt_dispersion) / 2
        waiting = used ** (np.sqrt(2 * (engines + 1)) - 1)
        mean_seconds = max(variation * self.service_seconds / (engines * (1 - used)), 1e-9)
        # Later prompts join its step: those that come while it waits, or all there is room for.
        wait_seconds = np.maximum(
            left_seconds / (1 + used), left_seconds - self._full_seconds * _PLACES[:, np.newaxis]
        )
        late = np.where(
            left_seconds < 0, 1.0, waiting * np.exp(-np.maximum(wait_seconds, 0.0) / mean_seconds)
        )
        # Between light steps it waits for what is left of one, and then for its own.
        cycle_seconds = self._cycle_seconds(requests_per_second / engines)
        between = (1 + _PLACES[:, np.newaxis]) * cycle_seconds > until_sent_seconds
        return float(np.where(between, np.maximum(late, waiting), late).mean())

    def _cycle_seconds(self, requests_per_second: float) -> float:
        """What the smallest step takes that keeps up with what one engine gets."""
        rates = np.maximum.accumulate(self._step_sizes / self._step_seconds)
        wanted = requests_per_second * self.mix.prompt_tokens
        return float(np.interp(wanted, rates, self._step_seconds))

    def _alone(self, tokens: float) -> float:
        """What one prompt takes that has the engine to itself: full steps, and one for the rest."""
        cached, most = self.mix.cached_tokens, self.step_tokens
        full, rest = divmod(tokens, most)
        seconds = self.step_seconds(rest, cached + tokens - rest / 2) if rest else 0.0
        # Each attends to more than the one before, evenly more: of very many some tell.
        told = min(int(full), _STEPS_TOLD)
        for number in range(told):
            before = (number + 0.5) / told * full * most
            seconds += full / told * self.step_seconds(most, cached + before)
        return seconds
