"""How requests are split among engines, and what of that is chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.known import known_mean
from disagg_cluster.planner.diagnose.evidence.series_window import Floats

# Shares vary by at least this part of what they vary if a router picks at random: the deviation of
# five blocks, the fewest that are compared, is known to about a factor of two.
_LEAST_OF_RANDOM = 0.5


def share(arrived: Floats, peers: NDArray[np.intp]) -> Floats:
    """Logarithm of an engine's arrivals over the mean of its peers that are up, itself included.

    `arrived` is by engine and block, NaN where an engine is not up; `peers` numbers groups of them.
    """
    found = np.full(arrived.shape, np.nan)
    for group in np.unique(peers):
        rows = np.flatnonzero(peers == group)
        if len(rows) < 2:
            continue
        own = arrived[rows]
        counts = np.isfinite(own).sum(axis=0)
        mean = np.nansum(own, axis=0) / np.maximum(counts, 1)
        # Half a request more on both sides keeps the logarithm finite for an engine that got none.
        found[rows] = np.log((own + 0.5) / (mean + 0.5))
    return found


def share_by_chance(arrived: Floats, peers: NDArray[np.intp]) -> Floats:
    """Least standard deviation of `share`: part of that if a router picks at random among equals.

    (Binomial; round robin varies less.)
    """
    usual = known_mean(arrived)
    found = np.zeros(len(peers))
    for group in np.unique(peers):
        rows = np.flatnonzero(peers == group)
        each = np.nan_to_num(usual[rows])
        parts = each / (float(each.sum()) + 0.5)
        found[rows] = _LEAST_OF_RANDOM * np.sqrt((1 - parts) / np.maximum(each, 0.5))
    return found


def larger_share_z(arrived: Floats, peers: NDArray[np.intp], onset: NDArray[np.intp]) -> Floats:
    """Significance of a larger share of requests since a block, by engine, as z; 0 if unknown.

    By chance a hypergeometric number of an engine's requests arrives since that block; its variance
    is scaled by the dispersion of blocks (Wedderburn 1974), which is small if a router deals out
    requests in turn. Logarithms of shares are noisier the fewer requests came, and ignore that many
    are less likely by chance.
    """
    counts, blocks = np.nan_to_num(arrived), arrived.shape[1]
    every = np.zeros((int(peers.max(initial=-1)) + 1, blocks))
    np.add.at(every, peers, counts)
    of_all, is_late = every[peers], np.arange(blocks) >= onset[:, None]
    own, total = counts.sum(axis=1), of_all.sum(axis=1)
    late, total_late = (counts * is_late).sum(axis=1), (of_all * is_late).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        before, since = (own - late) / (total - total_late), late / total_late
        part = np.where(is_late, since[:, None], before[:, None])
        squares = (counts - of_all * part) ** 2 / (of_all * part * (1 - part))
        dispersion = np.nansum(squares, axis=1) / max(blocks - 2, 1)
        chance = total_late / total
        variance = own * chance * (1 - chance) * (1 - own / total)
        variance *= np.maximum(dispersion, _LEAST_OF_RANDOM**2)
        z = (late - own * chance) / np.sqrt(variance)
    return np.asarray(np.where(np.isfinite(z), z, 0.0))
