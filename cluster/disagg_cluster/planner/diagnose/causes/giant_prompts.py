"""Prompts so long that others wait behind them: whether they became more frequent, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erfc, exp, log, sqrt

import numpy as np

from disagg_cluster.planner.diagnose.causes.suspicion import (
    LIKELY_Z,
    SINCE_Z,
    SURE_SINCE_Z,
    SURE_WAIT_Z,
    Adverse,
)
from disagg_cluster.planner.diagnose.evidence.known import divergence
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import lognormal
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE, shift_of
from disagg_cluster.planner.diagnose.verdict.values import Alternative, Cause

# Prompts so many times the mean are very long; fewer than so many (or of unprecedented length,
# unless it is the first) are chance.
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
# Squared lengths over the square of the mean: the least growth that counts.
_LEAST_SPREAD = 1.3


def giants(view: ModelView, rows: Rows) -> tuple[float, int]:
    """Significance of more frequent very long prompts, as z, and the block since which.

    Over all engines together, as it is chance which one the few go to, and above the length for
    which z is largest: some may be far longer than those that arrive now and then. They are counted
    from scrape to scrape: in blocks the count would depend on where these begin.
    """
    long, per_block = _long_prompts(view, rows), view.block_bins
    if long is None:
        return 0.0, 0
    least_before, found = LEAST_BEFORE * per_block, [(0.0, 0)]
    for bucket in np.flatnonzero(long.is_long & long.counts.any(axis=1)):
        beyond = long.beyond(int(bucket))
        each, every = beyond.counts[beyond.is_long].sum(axis=0), beyond.counts.sum(axis=0)
        found += [
            more_frequent(each, every, least_before, per_block),
            unprecedented(beyond, least_before),
        ]
    z, onset = max(found)
    return z, view.block_of(onset)


def wider_lengths(view: ModelView, rows: Rows, since_z: Floats | None) -> Adverse:
    """How much more unequal prompt lengths have become, over all engines together.

    Very long prompts are few and go to any engine; if they only moved to another engine, the total
    is unchanged. Where histograms are exported very long prompts are counted: a mean of squares
    depends on the longest few.
    """
    nothing = np.zeros(len(rows))
    count, total, squares = view.prompts(rows)
    z, onset = giants(view, rows)
    if not len(view.changes.fleet.prompts.tokens):
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = np.log(squares * count / total**2)
        shift = shift_of(np.where(np.isfinite(levels), levels, np.nan)[None])
        is_wider = shift.change[0] >= np.log(_LEAST_SPREAD)
        z, onset = (float(shift.z[0]) if is_wider else 0.0), int(shift.onset[0])
    is_sure = since_z is not None and float(since_z.max(initial=0.0)) >= SURE_WAIT_Z
    if is_sure and z >= SINCE_Z:
        # Two that agree are stronger evidence than the weaker of them.
        z = max(z, LIKELY_Z)
    if z < (SURE_SINCE_Z if is_sure else SINCE_Z):
        return Adverse(nothing, nothing, np.full(len(rows), onset, dtype=np.intp))
    before, after = (
        squares[part].sum() * count[part].sum() / max(total[part].sum(), 1.0) ** 2
        for part in (slice(0, onset), slice(onset, None))
    )
    change = max(float(np.log(after / before)) if before > 0 else 0.0, np.log(_LEAST_SPREAD))
    return Adverse(nothing + change, nothing + z, np.full(len(rows), onset, dtype=np.intp))


@dataclass(frozen=True, slots=True, eq=False)
class LongPrompts:
    """Lengths of buckets, prompts in each by bin, and which buckets are very long.

    `least_tokens` are the lower bounds of lengths in the buckets. `sums` are the tokens of all
    prompts of a bin, NaN where unknown.
    """

    tokens: Floats
    counts: Floats
    is_long: Flags
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
        """A lower bound of the mean length of very long prompts since a bin.

        From the sum of tokens less those of the other prompts, estimated by their ratio in bins
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
        deviation = _WITHIN * sqrt(float(squares[begin:].sum() + times**2 * squares[usual].sum()))
        left = float(self.sums[begin:].sum()) - ratio * float(worth[begin:].sum()) - 2 * deviation
        return max(left / float(self.counts[self.is_long, begin:].sum()), self.shortest)


def _long_prompts(view: ModelView, rows: Rows) -> LongPrompts | None:
    tokens, counts = view.prompt_counts(rows, 1)
    if not counts.any():
        return None
    least_tokens = view.changes.fleet.prompts.least_tokens
    mean = float((counts * tokens[:, None]).sum() / counts.sum())
    is_long = (tokens >= _GIANT * mean) & (least_tokens >= _LEAST_OF_BUCKET * mean)
    if not is_long.any():
        return None
    return LongPrompts(
        tokens, counts, is_long, lower_bounds(least_tokens, counts), view.prompt_sums(rows)
    )


def lower_bounds(least_tokens: Floats, counts: Floats) -> Floats:
    """`least_tokens`, for the last bucket that of the empty ones below it.

    An engine that has fewer bounds than we export has all its longest prompts in the last bucket.
    """
    found, below = least_tokens.copy(), len(counts) - 1
    while below > 1 and not counts[below - 1].any():
        below -= 1
    found[-1] = least_tokens[below]
    return found


def few_or_long(view: ModelView, rows: Rows, is_longer: Flags, cause: Cause) -> Alternative | None:
    """Longer prompts at one engine may instead be a few very long ones, and the reverse."""
    if cause is Cause.LONG_PROMPTS and giants(view, rows)[0] >= PERHAPS_GIANTS_Z:
        text = "some of the prompts are far longer than all others, and too few to tell"
        return Alternative(Cause.GIANTS, text)
    if cause is Cause.GIANTS and is_longer.any() and not is_longer.all():
        names = ", ".join(view.engines[row].place[2] for row in rows[is_longer])
        text = f"the prompts of {names} have become longer beside those of the others"
        return Alternative(Cause.LONG_PROMPTS, text)
    return None


def more_frequent(
    long: Floats, every: Floats, least_before: int, choice_bins: int = 1
) -> tuple[float, int]:
    """Significance of a larger share of long prompts since some bin, as z, and that bin.

    Given their total, the number of long prompts after a bin is binomial by chance (the signed root
    of the deviance: too few for a normal approximation). The bin with the largest z is taken, and z
    reduced for that choice, of which any `choice_bins` neighbours count as one.
    """
    n = long.sum()
    splits = np.arange(least_before, len(every) - 1)
    if n < _LEAST_GIANTS or not len(splits):
        return 0.0, 0
    # The share of all prompts since each bin, and the number of long ones.
    part = np.cumsum(every[::-1])[::-1][splits] / max(every.sum(), 1.0)
    k = np.cumsum(long[::-1])[::-1][splits]
    is_enough = (k >= _LEAST_GIANTS) & (part > 0) & (part < 1) & (k > n * part)
    deviance = np.where(is_enough, 2 * n * divergence(k / n, part), 0.0)
    best = int(np.argmax(deviance))
    z = sqrt(max(float(deviance[best]) - 2 * log(len(splits) / choice_bins), 0.0))
    return (z, int(splits[best])) if z > 0 else (0.0, 0)


def unprecedented(long: LongPrompts, least_before: int) -> tuple[float, int]:
    """Significance of prompts beyond the former lognormal lengths, as z, and the bin since which.

    One or two such are as strong evidence as many merely long ones. (Poisson, the signed root of
    the deviance, reduced for the choice of the bin.) If two came before they are not unprecedented.
    """
    per_bin = long.counts[long.is_long].sum(axis=0)
    best, onset, choices = 0.0, 0, 0
    for begin in np.flatnonzero(per_bin > 0):
        before = long.counts[:, :begin].sum(axis=1)
        found, former = float(per_bin[begin:].sum()), float(before[long.is_long].sum())
        # The first counts by itself, as long as it is the only one.
        is_few = former > 0 and found < _LEAST_UNPRECEDENTED
        if begin < least_before or before.sum() < 1 or is_few:
            continue
        if former >= _LEAST_UNPRECEDENTED:
            break
        choices += 1
        tail = _tail(long, before, long.mean_since(int(begin)))
        expected = float(long.counts[:, begin:].sum()) * tail
        if found <= expected:
            continue
        z = sqrt(2 * (found * log(found / expected) - found + expected))
        if z > best:
            best, onset = z, int(begin)
    return sqrt(max(best**2 - 2 * log(max(choices, 1)), 0.0)), onset


def _tail(long: LongPrompts, before: Floats, mean_tokens: float) -> float:
    """Share of the former lengths beyond the bound above which their mean is `mean_tokens`.

    Where some very long prompts came before, at least their share, however long they were.
    """
    middle, spread = lognormal(long.tokens, before)
    # From few prompts the estimate is uncertain: widen it by a standard error.
    spread *= 1 + 1 / sqrt(2 * float(before.sum()))
    z = (log(long.shortest) - middle) / spread
    while _beyond(z) > _THINNEST_TAIL and _mean_beyond(z, middle, spread) < mean_tokens:
        z += _STEP_Z
    former = float(before[long.is_long].sum())
    # (Jeffreys' prior.)
    former_share = (former + 0.5) / float(before.sum()) if former else 0.0
    return max(_beyond(z), former_share, _THINNEST_TAIL)


def _beyond(z: float) -> float:
    return 0.5 * erfc(z / sqrt(2))


def _mean_beyond(z: float, middle: float, spread: float) -> float:
    """The mean of a lognormal beyond a bound."""
    return exp(middle + spread**2 / 2) * _beyond(z - spread) / _beyond(z)
