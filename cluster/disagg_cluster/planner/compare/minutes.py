"""What a cluster did in each minute of a span."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from disagg_cluster.planner.history.load_series import Floats


@dataclass(frozen=True, slots=True, eq=False)
class SpanMinutes:
    """One value a step, NaN where it is not known; all are rates a second.

    `gpus` are GPU-seconds a second of everything that a GPU was held for, `watts` joules a second.
    `first_token_buckets[bound, step]` count requests whose first token came within the bound, the
    last of which is infinite. Of the time between tokens the sum and the number are known.
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
        """How many there are."""
        return len(self.requests)

    @property
    def prompt_lengths(self) -> Floats:
        """Prompt tokens to compute of a request."""
        found = np.full(self.steps, np.nan)
        np.divide(self.prompt_tokens, self.requests, out=found, where=self.requests > 0)
        return found
