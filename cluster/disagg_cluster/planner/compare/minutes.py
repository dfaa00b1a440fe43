"""Activity of a cluster in each minute of a span."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from disagg_cluster.planner.history.load_series import Floats, quotient


@dataclass(frozen=True, slots=True, eq=False)
class SpanMinutes:
    """One value per step, NaN where unknown; all are rates per second.

    `gpus` are GPU-seconds per second for which GPUs were held, for any reason; `watts` are joules
    per second of all of them. `first_token_buckets[bound, step]` count requests with a time to
    first token within the bound; the last bound is infinite. Times between tokens are given by
    their sum and count.
    """

    step_seconds: float
    requests: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    gpus: Floats
    watts: Floats
    between_tokens_seconds: Floats
    between_tokens_count: Floats
    first_token_bounds: tuple[float, ...] = ()
    first_token_buckets: Floats = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.requests)

    @property
    def is_empty(self) -> bool:
        """Whether neither requests nor GPUs are known at any step."""
        return not (np.isfinite(self.requests).any() or np.isfinite(self.gpus).any())

    @property
    def prompt_lengths(self) -> Floats:
        """Computed prompt tokens per request."""
        return quotient(self.prompt_tokens, self.requests)
