"""Recent measurements of requests besides their number and mean lengths.

The mean of two kinds of requests is like neither of them. Capacity depends on three more values:
how much prompts differ (long ones attend to more, and others wait behind them), how much outputs
differ, and the KV tokens that a decoding request holds. With prompts P and outputs O the last is
E[O (P + O/2)] / E[O]: far less than the means suggest if long outputs follow short prompts, and
more if long ones follow long ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.capacity.request_mix import MOST_TOKENS, RequestMix

SHAPE_SECONDS = 900.0
"""Window of the measurement: a shorter one is noisy, a longer one lags."""
_TRUSTED_REQUESTS = 50.0
"""A measurement of this many requests gets half of the weight, one of fewer gets less."""
_MOST_DISPERSION = 100.0
_MOST_FACTOR = 16.0


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How lengths differed, and the mean context of a decoding request; None if not measured.

    Dispersions are squared coefficients of variation. `requests` is of how many lengths were
    measured, which not all engines report.
    """

    requests: float = 0.0
    prompt_dispersion: float | None = None
    output_dispersion: float | None = None
    context_tokens: float | None = None

    def of(
        self,
        like: RequestMix,
        prompt_tokens: float,
        output_tokens: float,
        arrived_requests: float = 0.0,
    ) -> RequestMix:
        """A mix with these measurements.

        Args:
            like: What else is known of the requests, and the defaults of what was not measured.
            prompt_tokens: Mean computed tokens of a prompt in the same window.
            output_tokens: Mean tokens of an output.
            arrived_requests: How many arrived in the same window, and had a context.
        """

        def dispersion(measured: float | None, default: float) -> float:
            if measured is None:
                return default
            weight = _weight(self.requests)
            return default + weight * (min(measured, _MOST_DISPERSION) - default)

        like = replace(
            like,
            prompt_dispersion=dispersion(self.prompt_dispersion, like.prompt_dispersion),
            output_dispersion=dispersion(self.output_dispersion, like.output_dispersion),
            context_factor=1.0,
        )
        if not self.context_tokens:
            return like
        recent = replace(
            like,
            prompt_tokens=min(max(1.0, prompt_tokens), MOST_TOKENS),
            output_tokens=min(max(1.0, output_tokens), MOST_TOKENS),
        )
        ratio = self.context_tokens / recent.context_tokens
        weight = _weight(max(self.requests, arrived_requests))
        factor = float(np.clip(ratio, 1 / _MOST_FACTOR, _MOST_FACTOR)) ** weight
        return replace(like, context_factor=factor)


def _weight(requests: float) -> float:
    return requests / (requests + _TRUSTED_REQUESTS)
