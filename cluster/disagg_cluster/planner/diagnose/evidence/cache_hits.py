"""The share of prompt tokens that engines compute, the rest being cached, and its chance noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.known import divergence, known_mean
from disagg_cluster.planner.diagnose.evidence.readings import Readings
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats

# Even a fully cached prompt takes a step: a smaller computed share changes no wait.
_LEAST_PART = 0.05
# The largest possible variance of hits is a prior that weighs as much as so many blocks.
_PRIOR_BLOCKS = 4.0
# A difference between blocks this many times the usual one may be a change.
_FAR = 3.0


def computed_share(computed: Floats, prompt: Floats, served: Floats) -> Floats:
    """Logarithm of the share of prompt tokens that was computed; NaN without served requests.

    All are by engine and block: tokens computed, tokens of prompts, and requests `served`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log((computed + _LEAST_PART * prompt) / ((1 + _LEAST_PART) * prompt))
    return np.where(np.isfinite(found) & (served > 0), found, np.nan)


def computed_by_chance(
    computed: Floats, prompt: Floats, served: Floats, peers: NDArray[np.intp]
) -> Floats:
    """Standard deviation of `computed_share` in a block if prompts hit their prefixes by chance.

    The variance between prompts is estimated from neighbouring blocks of all peers, without the
    largest difference of each engine if it is far above the others: it may be a change. Shares with
    a mean m have a variance of at most m (1 - m) (Bhatia and Davis 2000).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where((served > 0) & (prompt > 0), computed / prompt, np.nan)
        squares = np.diff(share, axis=1) ** 2 / (1 / served[:, 1:] + 1 / served[:, :-1])
    squares = np.where(np.isfinite(squares), squares, np.nan)
    found = np.zeros(len(share))
    for group in np.unique(peers):
        rows = np.flatnonzero(peers == group)
        every = share[rows][np.isfinite(share[rows])]
        if not len(every):
            continue
        mean = min(float(every.mean()), 1.0)
        ranked = np.sort(squares[rows], axis=1)  # NaN come last
        known = np.isfinite(ranked)
        is_widest = np.arange(ranked.shape[1]) == known.sum(axis=1)[:, None] - 1
        usual = known_mean(ranked[known & ~is_widest])
        with np.errstate(invalid="ignore"):
            steps = ranked[known & ~(is_widest & (ranked > _FAR**2 * usual))]
        most = mean * (1 - mean)
        variance = (float(steps.sum()) + _PRIOR_BLOCKS * most) / (len(steps) + _PRIOR_BLOCKS)
        each = np.nan_to_num(known_mean(served[rows]))
        found[rows] = np.sqrt(variance / np.maximum(each, 1.0)) / (mean + _LEAST_PART)
    return found


def computed_more_z(
    computed: Floats,
    prompt: Floats,
    served: Floats,
    onset: NDArray[np.intp],
    peers: NDArray[np.intp],
) -> Floats:
    """Significance of an engine computing more of its prompts than its peers since a block, as z.

    Tests whether the computed shares of the engine and of all its peers together are equal, given
    the number of prompts of each (binomial, the signed root of the deviance). Few prompts on either
    side are weak evidence, which logarithms of shares near 0 do not reflect. 0 without a peer.
    """
    made, tokens, count = (np.nan_to_num(each) for each in (computed, prompt, served))
    each = np.arange(len(peers))
    totals = []
    for values in (np.minimum(made, tokens), tokens, count):
        since = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
        since = np.hstack([since, np.zeros((len(peers), 1))])
        of_group = np.zeros((int(peers.max(initial=-1)) + 1, since.shape[1]))
        np.add.at(of_group, peers, since)
        own = since[each, onset]
        totals.append((own, of_group[peers, onset] - own))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = [made / tokens for made, tokens in zip(totals[0], totals[1], strict=True)]
        (own, others), (n_own, n_others) = shares, totals[2]
        both = (own * n_own + others * n_others) / (n_own + n_others)
        deviance = n_own * divergence(own, both) + n_others * divergence(others, both)
    z = np.sqrt(2 * np.maximum(np.nan_to_num(deviance), 0.0))
    return np.asarray(np.where(np.nan_to_num(own - others) > 0, z, -z))


def hitless_z(readings: Readings, is_prefill: Flags, least_bins: int) -> Floats:
    """Significance of a cache failure at engines without a single hit for some bins, as z.

    A prompt hits its prefix or does not: of the last n none did, though a share of all tokens was
    found before (binomial, the signed root of the deviance; shares between none and all vary less).
    By engine; 0 where the last `least_bins` had a hit.
    """
    served = np.where(is_prefill[:, None], readings.of("entry_count"), readings.of("first_count"))
    observed = (readings.of("cached_tokens"), readings.of("computed_tokens"), served)
    found, made, count = (np.nan_to_num(each) for each in observed)
    bins = found.shape[1]
    runs = np.where((found > 0).any(axis=1), np.argmax(found[:, ::-1] > 0, axis=1), 0)
    is_after = np.arange(bins) >= (bins - runs)[:, None]
    n_after = np.where(is_after, count, 0.0).sum(axis=1)
    n_before = np.where(is_after, 0.0, count).sum(axis=1)
    before = np.where(is_after, 0.0, found + made).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = found.sum(axis=1) / before
        both = hit * n_before / (n_before + n_after)
        deviance = n_before * divergence(hit, both) + n_after * divergence(np.zeros(1), both)
    stands = (runs >= least_bins) & (n_after > 0) & np.isfinite(deviance)
    return np.asarray(np.sqrt(2 * np.where(stands, np.maximum(deviance, 0.0), 0.0)))
