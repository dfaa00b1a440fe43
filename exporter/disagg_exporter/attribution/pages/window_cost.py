"""Learns the cost of an engine's steps from stretches of which only sums are known.

A step takes the longer of arithmetic and reading memory, as in `cost_model.fit`, with fewer terms
because sums contain less: arithmetic has a cost per token of either phase; reading has one per step
(the weights), one per decoding request (its cache) and, with a mixture of experts, one for the
experts that its tokens choose.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.attribution.cost_model.nnls import solve

Columns = NDArray[np.float64]

# How fast a step's tokens come to read all experts: a mixture of a short and a long scale.
_EXPERTS_TOKENS = np.array([16.0, 64.0])
# How much the log-likelihood must improve for experts to be included.
_PRICE_OF_EXPERTS = 12.0
_PACE_SECONDS, _LARGEST_PACE = 60.0, 4.0
_ROUNDS = 10
_LEAST_GAIN = 1e-6
# Starting points: the part of steps with a prompt, fewest tokens first, assigned to reading.
_BEGINNINGS = (0.0, 0.5, 1.0)
_LEAST_ERROR = 1e-12


class Steps(NamedTuple):
    """The steps of stretches, a row for each.

    `plain` steps have no prompt, `mixed` ones have one of `prompt_tokens` (a column per kind of
    step; `parts` are the kinds' shares of the mixed steps). `requests` decode in each.
    """

    plain: Columns
    mixed: Columns
    requests: Columns
    prompt_tokens: Columns
    parts: Columns


class WindowCosts(NamedTuple):
    """Seconds per step, per decoding request, per token, and for all experts."""

    step: float
    request: float
    token: float
    experts: tuple[float, ...] = ()

    def reading(self, requests: Columns, prompt_tokens: Columns) -> Columns:
        """Return how long such steps read memory."""
        seconds = self.step + self.request * requests + 0.0 * prompt_tokens
        for price, some in zip(self.experts, _EXPERTS_TOKENS, strict=False):
            seconds = seconds + price * (1 - np.exp(-(requests + prompt_tokens) / some))
        return seconds

    def price(self, requests: Columns, prompt_tokens: Columns) -> Columns:
        """Return how long such steps take."""
        computing = self.token * (requests + prompt_tokens)
        longer: Columns = np.maximum(self.reading(requests, prompt_tokens), computing)
        return longer

    def divide(self, steps: Steps) -> tuple[Columns, Columns]:
        """Return the seconds of prefill and of decode in each stretch.

        By what each phase adds to a mixed step, averaged over both orders
        (docs/decisions/0005-mixed-steps.md).
        """
        requests, tokens = steps.requests[:, None], steps.prompt_tokens
        nothing = np.zeros((1, 1))
        empty = self.price(nothing, nothing)
        prefill, decode = self.price(nothing, tokens), self.price(requests, nothing)
        both = self.price(requests, tokens)
        first, second = prefill - empty + both - decode, decode - empty + both - prefill
        # If neither adds anything, by tokens.
        adds = first + second
        part, whole = np.where(adds > 0, (first, adds), (tokens, tokens + requests))
        share = part / np.where(whole > 0, whole, 1.0)
        mixed = steps.mixed[:, None] * steps.parts * both
        prefill_seconds = (mixed * share).sum(axis=1)
        return prefill_seconds, steps.plain * decode[:, 0] + mixed.sum(axis=1) - prefill_seconds

    def busy_seconds(self, steps: Steps) -> Columns:
        """Return how long stretches with these steps are busy."""
        prefill, decode = self.divide(steps)
        return prefill + decode


def fit(
    steps: Steps, busy_seconds: Columns, seconds: Columns, known: WindowCosts | None
) -> WindowCosts:
    """Return the costs that best explain how long stretches were busy.

    Stretches are in order, `seconds` are their lengths. A pace common to neighbours in time
    (clocks, throttling) is divided out: it affects all steps, and would bias the costs.
    """
    first = _fit(steps, busy_seconds, known)
    expected_seconds = np.maximum(first.busy_seconds(steps), busy_seconds / _LARGEST_PACE)
    ratios = np.maximum(busy_seconds / expected_seconds, 1 / _LARGEST_PACE)
    pace = _smooth(ratios, busy_seconds, seconds)
    return _fit(steps, busy_seconds / pace, first)


def _fit(steps: Steps, busy_seconds: Columns, known: WindowCosts | None) -> WindowCosts:
    least, dense = _best(steps, busy_seconds, known, experts=False)
    less, expert = _best(steps, busy_seconds, known, experts=True)
    gain = len(busy_seconds) / 2 * log(least / less)
    return expert if gain > _PRICE_OF_EXPERTS else dense


def _smooth(ratios: Columns, weights: Columns, seconds: Columns) -> Columns:
    """Return the weighted mean over neighbours in time, nearer ones weighing more."""
    middle = np.cumsum(seconds) - seconds / 2
    near = np.exp(-np.abs(middle[:, None] - middle) / _PACE_SECONDS) * weights
    mean: Columns = near @ ratios / near.sum(axis=1)
    return mean


def _best(
    steps: Steps, busy_seconds: Columns, known: WindowCosts | None, *, experts: bool
) -> tuple[float, WindowCosts]:
    tokens = steps.prompt_tokens + steps.requests[:, None]
    borders = np.quantile(tokens, _BEGINNINGS)
    beginnings = [tokens > border for border in borders]
    if known is not None:
        read = known.reading(steps.requests[:, None], steps.prompt_tokens)
        beginnings.append(known.token * tokens > read)
    found = [_improve(steps, busy_seconds, computes, experts=experts) for computes in beginnings]
    return min(found, key=lambda tried: tried[0])


def _improve(
    steps: Steps, busy_seconds: Columns, computes: NDArray[np.bool_], *, experts: bool
) -> tuple[float, WindowCosts]:
    """Alternately fit both lines, and reassign the steps that compute longer than they read."""
    tokens = steps.prompt_tokens + steps.requests[:, None]
    best, least = WindowCosts(0.0, 0.0, 0.0), float("inf")
    for _ in range(_ROUNDS):
        costs = _least_squares(steps, busy_seconds, computes, experts=experts)
        errors = costs.busy_seconds(steps) / busy_seconds - 1
        squares = float(errors @ errors) + _LEAST_ERROR
        if squares >= least * (1 - _LEAST_GAIN):
            break
        best, least = costs, squares
        reading = costs.reading(steps.requests[:, None], steps.prompt_tokens)
        computes = costs.token * tokens > reading
    return least, best


def _least_squares(
    steps: Steps, busy_seconds: Columns, computes: NDArray[np.bool_], *, experts: bool
) -> WindowCosts:
    tokens = steps.prompt_tokens + steps.requests[:, None]
    mixed = steps.mixed[:, None] * steps.parts
    reads = mixed * ~computes
    reading = steps.plain + reads.sum(axis=1)
    columns = [reading, reading * steps.requests, (mixed * computes * tokens).sum(axis=1)]
    for some in _EXPERTS_TOKENS if experts else ():
        plain = steps.plain * (1 - np.exp(-steps.requests / some))
        columns.append(plain + (reads * (1 - np.exp(-tokens / some))).sum(axis=1))
    # Relative errors: a quiet stretch tells as much about the costs as a full one.
    features = np.stack(columns) / busy_seconds
    step, request, token, *more = solve(features @ features.T, features.sum(axis=1)).tolist()
    return WindowCosts(step, request, token, tuple(more))
