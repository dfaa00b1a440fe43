"""Prompts so long that others wait behind them: whether they became more frequent, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erfc, exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import lognormal
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE
from disagg_cluster.planner.diagnose.verdict.values import Alternative, Cause

# Prompts so many times the mean are very long; fewer than so many (or of unprecedented length) are
# chance.
_GIANT, _LEAST_GIANTS, _LEAST_UNPRECEDENTED = 2.5, 4, 2
# Buckets are coarse: their middle must be that long, their lower bound so many times the mean.
_LEAST_OF_BUCKET = 1.8
# Lower bound of the share beyond a length: no tail is known to be thinner.
_THINNEST_TAIL = 1e-5
# Standard deviation of lengths within a bucket, as a part of its middle.
_WITHIN = 0.3
_STEP_Z = 0.1
# Very long prompts may have become more frequent from this z on.
PERHAPS_GIANTS_Z = 2.0


def giants(view: ModelView, rows: Rows) -> tuple[float, int]:
    """Significance of more frequent very long prompts, as z, and the block since which.

    Over all engines together, as it is chance which one the few go to, and above the length for
    which z is largest: some may be far longer than those that arrive now and then.
    """
    long = _long_prompts(view, rows)
    if long is None:
        return 0.0, 0
    found = [(0.0, 0)]
    for bucket in np.flatnonzero(long.is_long & long.counts.any(axis=1)):
        beyond = long.beyond(int(bucket))
        per_block = beyond.counts[beyond.is_long].sum(axis=0)
        found += [more_frequent(per_block, beyond.counts.sum(axis=0)), unprecedented(beyond)]
    return max(found)


@dataclass(frozen=True, slots=True, eq=False)
class LongPrompts:
    """Lengths of buckets, prompts in each by block, and which buckets are very long.

    `least_tokens` are the lower bounds of the buckets. `sums` are the tokens of all prompts of a
    block, NaN where unknown.
    """

    tokens: Floats
    counts: Floats
    is_long: NDArray[np.bool_]
    least_tokens: Floats
    sums: Floats

    @property
    def shortest(self) -> float:
        """The least length that is very long."""
        return float(self.least_tokens[self.is_long].min())

    def beyond(self, bucket: int) -> LongPrompts:
        """A copy in which only this bucket and longer ones are very long."""
        return replace(self, is_long=np.arange(len(self.tokens)) >= bucket)

    def mean_since(self, begin: int) -> float:
        """A lower bound of the mean length of very long prompts since a block.

        From the sum of tokens less those of the other prompts, estimated by their ratio in blocks
        without very long ones, less two standard deviations of lengths within buckets.
        """
        short = np.where(self.is_long[:, None], 0.0, self.counts)
        has_none = short.sum(axis=0) == self.counts.sum(axis=0)
        worth = (short * self.tokens[:, None]).sum(axis=0)
        usual = has_none & np.isfinite(self.sums)
        if not np.isfinite(self.sums[begin:]).all() or not worth[usual].sum() > 0:
            return self.shortest
        ratio = float(self.sums[usual].sum() / worth[usual].sum())
        squares = (short * self.tokens[:, None] ** 2).sum(axis=0)
        # The ratio is as uncertain as the prompts it was estimated from.
        times = float(worth[begin:].sum() / worth[usual].sum())
        strays = _WITHIN * sqrt(float(squares[begin:].sum() + times**2 * squares[usual].sum()))
        left = float(self.sums[begin:].sum()) - ratio * float(worth[begin:].sum()) - 2 * strays
        return max(left / float(self.counts[self.is_long, begin:].sum()), self.shortest)


def _long_prompts(view: ModelView, rows: Rows) -> LongPrompts | None:
    tokens, counts = view.prompt_counts(rows)
    if not counts.any():
        return None
    least_tokens = view.changes.fleet.prompts.least_tokens
    mean = float((counts * tokens[:, None]).sum() / counts.sum())
    is_long = (tokens >= _GIANT * mean) & (least_tokens >= _LEAST_OF_BUCKET * mean)
    if not is_long.any():
        return None
    return LongPrompts(tokens, counts, is_long, least_tokens, view.prompt_sums(rows))


def few_or_long(
    view: ModelView, rows: Rows, is_longer: NDArray[np.bool_], cause: Cause
) -> Alternative | None:
    """Longer prompts at one engine may instead be a few very long ones, and the reverse."""
    if cause is Cause.LONG_PROMPTS and giants(view, rows)[0] >= PERHAPS_GIANTS_Z:
        text = "some of the prompts are far longer than all others, and too few to tell"
        return Alternative(Cause.GIANTS, text)
    if cause is Cause.GIANTS and is_longer.any() and not is_longer.all():
        names = ", ".join(view.engines[row].place[2] for row in rows[is_longer])
        text = f"the prompts of {names} have become longer beside those of the others"
        return Alternative(Cause.LONG_PROMPTS, text)
    return None


def more_frequent(long: Floats, every: Floats) -> tuple[float, int]:
    """Significance of a larger share of long prompts since some block, as z, and that block.

    Given their total, the number of long prompts after a block is binomial by chance (the signed
    root of the deviance: too few for a normal approximation). The block with the largest z is
    taken, and z reduced for that choice.
    """
    n = long.sum()
    splits = np.arange(LEAST_BEFORE, len(every) - 1)
    if n < _LEAST_GIANTS or not len(splits):
        return 0.0, 0
    # The share of all prompts since each block, and the number of long ones.
    part = np.cumsum(every[::-1])[::-1][splits] / max(every.sum(), 1.0)
    k = np.cumsum(long[::-1])[::-1][splits]
    is_enough = (k >= _LEAST_GIANTS) & (part > 0) & (part < 1) & (k > n * part)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.where(n > k, (n - k) * np.log((n - k) / (n * (1 - part))), 0.0)
        deviance = np.where(is_enough, 2 * (k * np.log(k / (n * part)) + rest), 0.0)
    best = int(np.argmax(deviance))
    z = sqrt(max(float(deviance[best]) - 2 * log(len(splits)), 0.0))
    return (z, int(splits[best])) if z > 0 else (0.0, 0)


def unprecedented(long: LongPrompts) -> tuple[float, int]:
    """Significance of prompts beyond the former lognormal lengths, as z, and the block since which.

    Two such are as strong evidence as many merely long ones. (Poisson, the signed root of the
    deviance.)
    """
    per_block = long.counts[long.is_long].sum(axis=0)
    best, onset = 0.0, 0
    for begin in np.flatnonzero(per_block > 0):
        before = long.counts[:, :begin].sum(axis=1)
        found = float(per_block[begin:].sum())
        if begin < LEAST_BEFORE or before.sum() < 1 or found < _LEAST_UNPRECEDENTED:
            continue
        tail = _tail(long, before, long.mean_since(int(begin)))
        expected = float(long.counts[:, begin:].sum()) * tail
        if found <= expected:
            continue
        z = sqrt(2 * (found * log(found / expected) - found + expected))
        if z > best:
            best, onset = z, int(begin)
    return best, onset


def _tail(long: LongPrompts, before: Floats, mean_tokens: float) -> float:
    """Share of the former lengths beyond the bound above which their mean is `mean_tokens`.

    At least the share that the number of very long prompts before implies.
    """
    middle, spread = lognormal(long.tokens, before)
    # From few prompts the estimate is uncertain: widen it by a standard error.
    spread *= 1 + 1 / sqrt(2 * float(before.sum()))
    z = shortest = (log(long.shortest) - middle) / spread
    while _beyond(z) > _THINNEST_TAIL and _mean_beyond(z, middle, spread) < mean_tokens:
        z += _STEP_Z
    former_share = float(before[long.is_long].sum() / before.sum())
    former_share *= _beyond(z) / max(_beyond(shortest), _THINNEST_TAIL)
    return max(_beyond(z), former_share, _THINNEST_TAIL)


def _beyond(z: float) -> float:
    return 0.5 * erfc(z / sqrt(2))


def _mean_beyond(z: float, middle: float, spread: float) -> float:
    """The mean of a lognormal beyond a bound."""
    return exp(middle + spread**2 / 2) * _beyond(z - spread) / _beyond(z)
