"""What engines' pages would report of both pools: how full they are, and their mean request."""

from __future__ import annotations

import numpy as np
from bench.plan.days import HISTORY_DAYS, MINUTES
from bench.plan.profile import LIKE, STEP_MINUTES, Profile
from bench.plan.truth import ModelTruth

from disagg_cluster.planner.capacity.bisection import largest
from disagg_cluster.planner.capacity.learned.length_dispersion import dispersion_of
from disagg_cluster.planner.capacity.learned.request_shape import SHAPE_SECONDS, RequestShape
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.history.load_series import Floats
from disagg_exporter.model import Role

# The exporter's knee: nine tenths of the rate of a prefill engine that is always busy.
_KNEE = 0.9
_SHAPE_MINUTES = round(SHAPE_SECONDS / 60)
# vLLM's buckets of lengths.
_BOUNDS = [digit * 10.0**power for power in range(6) for digit in (1, 2, 5)]


class MeasuredPools:
    """Measures the only model of a profile once a minute."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        (self._day,) = profile.days
        self._used: list[tuple[float, float]] = []
        self._held: list[tuple[float, int]] = []

    def measure(self, model: ModelTruth) -> None:
        """Measure at the end of a minute."""
        self._used = [*self._used[1 - STEP_MINUTES :], self._fullness(model)]
        held = (model.decode_held_tokens, model.decode_running)
        self._held = [*self._held[1 - _SHAPE_MINUTES :], held]

    @property
    def capacity_used(self) -> dict[Role, float]:
        """Return the mean of the last measurements."""
        used = [sum(of) / len(of) for of in zip(*self._used, strict=True)]
        return dict(zip((Role.PREFILL, Role.DECODE), used, strict=True))

    def like(self, minute: int) -> RequestMix:
        """Return the mean of recent requests, by histograms of their lengths and by the caches."""
        now = HISTORY_DAYS * MINUTES + minute
        lately = slice(now - _SHAPE_MINUTES, now)
        arrivals = self._day.arrivals
        first, last = np.searchsorted(
            arrivals.seconds, ((minute - _SHAPE_MINUTES) * 60.0, minute * 60.0)
        )
        held, running = (sum(of) for of in zip(*self._held, strict=True))
        shape = RequestShape(
            float(last - first),
            _dispersion(arrivals.prompt_tokens[first:last]),
            _dispersion(arrivals.output_tokens[first:last]),
            held / running if running else None,
        )
        some = max(float(self._day.requests[lately].sum()), 1e-9)
        return shape.of(
            LIKE,
            float(self._day.prompt_tokens[lately].sum()) / some,
            float(self._day.output_tokens[lately].sum()) / some,
        )

    def _fullness(self, model: ModelTruth) -> tuple[float, float]:
        """Return capacity used as the exporter does: by the batch at the target, same contexts."""
        each = model.decode_running / model.decode.serving
        context = model.decode_held_tokens / max(1, model.decode_running)
        option = self._profile.options[0][1]
        costs, target = option.costs, option.targets.itl_seconds
        most = largest(
            lambda batch: costs.step_seconds(0.0, 0.0, batch, batch * context) <= target,
            float(costs.shape.max_num_seqs),
        )
        blocked = float(model.decode_requests > model.decode_running)
        used = max(each / max(most, 1.0), model.decode_kv_ratio, blocked)
        return model.prefill_busy / _KNEE, used


def _dispersion(lengths: Floats) -> float | None:
    buckets = np.searchsorted(_BOUNDS, lengths)
    counts = np.bincount(buckets, minlength=len(_BOUNDS) + 1).astype(np.float64)
    return dispersion_of([*_BOUNDS, np.inf], counts.tolist(), float(lengths.sum()))
