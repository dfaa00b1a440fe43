"""Estimates from sums how many steps of an engine had a prompt, and of how many tokens."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.attribution.pages.window_cost import Columns, Steps, WindowCosts
from disagg_exporter.engine_pages.histograms import BETWEEN_TOKENS_BOUNDS_SECONDS

_BOUNDS = np.array(BETWEEN_TOKENS_BOUNDS_SECONDS)
BUCKETS = len(_BOUNDS) + 1
"""Buckets of the time between tokens."""

# Gauss-Laguerre nodes and weights: a step's prompt tokens over their mean, if exponential.
_SPREAD = np.array([0.4157745568, 2.2942803603, 6.2899450829])
_SPREAD_PARTS = np.array([0.7110930099, 0.2785177336, 0.0103892565])
_WHOLE = np.array([1.0])
# The middle of each bucket of times between tokens.
_MIDDLES = np.sqrt(_BOUNDS[:-1] * _BOUNDS[1:])
_GAP_SECONDS = np.array([_BOUNDS[0] / 2, *_MIDDLES, 2 * _BOUNDS[-1]])
# A step longer than this many times one that only decodes has a prompt in it.
_SLOW = 1.4
# Quick and slow steps are separate if few lie between and the slow ones take enough of the time.
_VALLEY, _LEAST_SLOW_TIME = 0.25, 0.1
# Fewer steps count as none: a hostile page's counters may grow by any fraction.
_LEAST_STEPS = 1e-9
# Prompts are cut if slow steps outnumber prompts by this factor, with pieces of at least this size.
_CUT, _LEAST_PIECE_TOKENS = 1.3, 128.0
# Slow steps show the pieces if there are nearly as many as full steps of prompts.
_NEARLY_ALL = 0.8
# At least this part of a full step is prompt, however many requests decode beside it.
_LEAST_PIECE = 1 / 8


class Sums(NamedTuple):
    """The counts of stretches, a row for each.

    `by_gap` are the steps by the time between their tokens and the previous ones.
    """

    steps: Columns
    prompts: Columns
    prefill_tokens: Columns
    decode_tokens: Columns
    by_gap: Columns

    @classmethod
    def of(cls, rows: Columns) -> Self:
        """Return the sums of rows of these numbers, in this order."""
        steps, prompts, prefill, decode = rows[:, :4].T
        return cls(steps, prompts, prefill, decode, rows[:, 4 : 4 + BUCKETS])


class Cutting(NamedTuple):
    """Whether an engine's prompts are longer than one step computes.

    Such a prompt is computed in pieces, in steps that also decode, and counted when it ends. The
    time and size of the pieces is inferred from slow tokens: `tokens_per_second` is the mean rate
    of prompt tokens in slow steps, 0 if prompts are computed at once. Steps are slow from the
    bucket `first_slow` on, if their requests allow it. `step_tokens` is the size of a full step,
    where pieces are not slow enough to show in that way, else 0.
    """

    tokens_per_second: float = 0.0
    first_slow: int = 0
    step_tokens: int = 0

    def steps(self, sums: Sums, costs: WindowCosts | None) -> Steps:
        """Return the steps of stretches."""
        requests = sums.decode_tokens / sums.steps
        if self.tokens_per_second and costs is not None:
            mixed, seconds = _slow_steps(sums, costs, self.first_slow)
            tokens = self.tokens_per_second * seconds / _or_one(mixed)
            return Steps(sums.steps - mixed, mixed, requests, tokens[:, None], _WHOLE)
        mixed = _with_a_prompt(sums)
        if self.step_tokens:
            piece_tokens = _piece_tokens(sums, self.step_tokens)
            full = sums.prefill_tokens / piece_tokens
            mixed = np.minimum(np.maximum(mixed, full), sums.steps)
            # Tokens beyond what the steps can hold were computed before this stretch.
            tokens = np.minimum(sums.prefill_tokens / _or_one(mixed), piece_tokens)
            return Steps(sums.steps - mixed, mixed, requests, tokens[:, None], _WHOLE)
        mean = sums.prefill_tokens / _or_one(mixed)
        return Steps(sums.steps - mixed, mixed, requests, mean[:, None] * _SPREAD, _SPREAD_PARTS)


def cutting(sums: Sums, costs: WindowCosts | None, step_tokens: int | None = None) -> Cutting:
    """Return whether the prompts of stretches were cut, by the known costs of steps.

    `step_tokens` is the maximum tokens of a step, None if unknown.
    """
    full, prompts = 0.0, float(_with_a_prompt(sums).sum())
    if step_tokens is not None:
        full = float((sums.prefill_tokens / _piece_tokens(sums, step_tokens)).sum())
    by_limit = Cutting(step_tokens=step_tokens or 0) if full > _CUT * prompts else Cutting()
    if costs is None:
        return by_limit
    first = _valley(sums.by_gap.sum(axis=0), int(_first_slow(sums, costs).min()))
    slow, seconds = (float(each.sum()) for each in _slow_steps(sums, costs, first))
    tokens = float(sums.prefill_tokens.sum())
    cut = slow > _CUT * prompts and tokens >= slow * _LEAST_PIECE_TOKENS
    shown = cut and (not by_limit.step_tokens or slow >= _NEARLY_ALL * full)
    return Cutting(tokens / seconds, first) if shown else by_limit


def _piece_tokens(sums: Sums, step_tokens: int) -> Columns:
    """Return the prompt tokens that fill a step beside the decoding requests."""
    requests = sums.decode_tokens / sums.steps
    pieces: Columns = np.maximum(step_tokens - requests, step_tokens * _LEAST_PIECE)
    return pieces


def _or_one(steps: Columns) -> Columns:
    """Return steps as a divisor: 1 where there are none."""
    return np.where(steps > _LEAST_STEPS, steps, 1.0)


def _with_a_prompt(sums: Sums) -> Columns:
    """Return how many steps have a prompt if prompts arrive at random.

    A step without one decodes at least one token.
    """
    at_random = sums.steps * -np.expm1(-sums.prompts / sums.steps)
    mixed: Columns = np.maximum(at_random, sums.steps - sums.decode_tokens)
    return mixed


def _first_slow(sums: Sums, costs: WindowCosts) -> NDArray[np.intp]:
    """Return the first bucket above all steps that only decode."""
    requests = sums.decode_tokens / sums.steps
    quick_seconds = costs.price(requests, np.zeros_like(requests))
    above: NDArray[np.intp] = np.searchsorted(_BOUNDS, _SLOW * quick_seconds) + 1
    return above


def _slow_steps(sums: Sums, costs: WindowCosts, first: int) -> tuple[Columns, Columns]:
    """Return how many steps took longer than one that only decodes, and their total time."""
    firsts = np.maximum(_first_slow(sums, costs), first)
    slow = sums.by_gap * (np.arange(BUCKETS) >= firsts[:, None])
    return slow.sum(axis=1), slow @ _GAP_SECONDS


def _valley(steps: NDArray[np.float64], first: int) -> int:
    """Return the first bucket of slow steps: `first`, or the valley above it."""
    parting, least = first, float("inf")
    seconds = steps * _GAP_SECONDS
    for place in range(first, BUCKETS - 1):
        before, after = steps[max(first - 1, 0) : place], steps[place + 1 :]
        rare = steps[place] < _VALLEY * min(before.max(initial=0.0), after.max())
        long = seconds[place + 1 :].sum() >= _LEAST_SLOW_TIME * seconds[first:].sum()
        if rare and long and steps[place] < least:
            parting, least = place, steps[place]
    return parting
