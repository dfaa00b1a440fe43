"""What engines compute of their prompts, the rest being cached, and how far chance moves that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.series_window import Floats

# A prompt that is cached whole still takes a step: less than this part of it changes no wait.
_LEAST_PART = 0.05
# Until blocks have told how far hits stray, the most that they can counts as so many of them.
_PRIOR_BLOCKS = 4.0


def computed_share(computed: Floats, prompt: Floats, served: Floats) -> Floats:
    """Logarithm of the part of prompt tokens that was computed; NaN where nobody was served.

    All are by engine and block: tokens computed, tokens of prompts, and requests `served`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log((computed + _LEAST_PART * prompt) / ((1 + _LEAST_PART) * prompt))
    return np.where(np.isfinite(found) & (served > 0), found, np.nan)


def computed_by_chance(
    computed: Floats, prompt: Floats, served: Floats, peers: NDArray[np.intp]
) -> Floats:
    """Standard deviation of `computed_share` in a block where each prompt meets its prefix by luck.

    How far prompts differ is read off neighbouring blocks of all peers, without the widest step of
    each engine, which may be a change. Shares with a mean m stray by no more than m (1 - m)
    (Bhatia and Davis 2000).
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
        widest = np.maximum(np.isfinite(ranked).sum(axis=1) - 1, 0)
        steps = ranked[np.arange(ranked.shape[1]) < widest[:, None]]
        most = mean * (1 - mean)
        variance = (float(steps.sum()) + _PRIOR_BLOCKS * most) / (len(steps) + _PRIOR_BLOCKS)
        counts = served[rows]
        usual = np.nansum(counts, axis=1) / np.maximum(np.isfinite(counts).sum(axis=1), 1)
        found[rows] = np.sqrt(variance / np.maximum(usual, 1.0)) / (mean + _LEAST_PART)
    return found
