"""Prompts so long that others wait behind them: whether they have become more, and since when."""

from __future__ import annotations

from math import erfc, log, sqrt

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE
from disagg_cluster.planner.diagnose.verdict.values import Alternative, Cause

# Prompts so many times as long as the mean are very long; fewer than so many are chance.
_GIANT, _LEAST_GIANTS, _LEAST_UNHEARD_OF = 2.5, 4, 2
# Buckets are coarse: it is their middle that is so long, and the shortest in them nearly.
_LEAST_OF_BUCKET = 1.8
# No tail is known to be thinner.
_THINNEST_TAIL = 1e-5
# Very long prompts may have become more from so many standard errors on.
_PERHAPS_GIANTS_Z = 2.0


def giants(view: ModelView, rows: Rows) -> tuple[float, int]:
    """How surely prompts far above the mean have become more frequent, and since which block.

    Of all engines together: which one the few come to is chance.
    """
    tokens, counts = view.prompt_counts(rows)
    if not counts.any():
        return 0.0, 0
    least_tokens = view.changes.fleet.prompts.least_tokens
    mean = float((counts * tokens[:, None]).sum() / counts.sum())
    is_long = (tokens >= _GIANT * mean) & (least_tokens >= _LEAST_OF_BUCKET * mean)
    long, every = counts[is_long].sum(axis=0), counts.sum(axis=0)
    known = _more_frequent(long, every), _unheard_of(tokens, least_tokens, counts, is_long)
    return max(known)


def few_or_long(
    view: ModelView, rows: Rows, is_longer: NDArray[np.bool_], cause: Cause
) -> Alternative | None:
    """Longer prompts at one engine may be a few very long ones that came there, and the reverse."""
    if cause is Cause.LONG_PROMPTS and giants(view, rows)[0] >= _PERHAPS_GIANTS_Z:
        text = "some of the prompts are far longer than all others, and too few to tell"
        return Alternative(Cause.GIANTS, text)
    if cause is Cause.GIANTS and is_longer.any() and not is_longer.all():
        names = ", ".join(view.engines[row].place[2] for row in rows[is_longer])
        text = f"the prompts of {names} have become longer beside those of the others"
        return Alternative(Cause.LONG_PROMPTS, text)
    return None


def _more_frequent(long: Floats, every: Floats) -> tuple[float, int]:
    """Given how many long ones there were, how many of them came late is binomial by chance.

    The block that says most is taken.
    """
    n = long.sum()
    splits = np.arange(LEAST_BEFORE, len(every) - 1)
    if n < _LEAST_GIANTS or not len(splits):
        return 0.0, 0
    # Of the requests, and of the long ones, those from each block on.
    part = np.cumsum(every[::-1])[::-1][splits] / max(every.sum(), 1.0)
    k = np.cumsum(long[::-1])[::-1][splits]
    told = (k >= _LEAST_GIANTS) & (part > 0) & (part < 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(told, (k - n * part) / np.sqrt(n * part * (1 - part)), 0.0)
    best = int(np.argmax(z))
    return (float(z[best]), int(splits[best])) if z[best] > 0 else (0.0, 0)


def _unheard_of(
    tokens: Floats, least_tokens: Floats, counts: Floats, is_long: np.ndarray
) -> tuple[float, int]:
    """Whether some are longer than lengths that were lognormal before would ever be.

    Two such say as much as a crowd of merely long ones. (Poisson, the signed root of the deviance.)
    """
    coming = np.flatnonzero(counts[is_long].sum(axis=0) > 0)
    if not len(coming) or coming[0] < LEAST_BEFORE:
        return 0.0, 0
    onset = int(coming[0])
    before = counts[:, :onset].sum(axis=1)
    if before.sum() < 1:
        return 0.0, 0
    logs = np.log(tokens)
    # Within a bucket lengths are spread evenly over its logarithms, about.
    widths = np.diff(logs, append=logs[-1] + 1.0)
    middle = float(np.average(logs, weights=before))
    spread = sqrt(float(np.average((logs - middle) ** 2 + widths**2 / 12, weights=before)))
    shortest = float(least_tokens[is_long].min())
    tail = max(0.5 * erfc((log(shortest) - middle) / spread / sqrt(2)), _THINNEST_TAIL)
    found = float(counts[is_long, onset:].sum())
    expected = float(counts[:, onset:].sum()) * tail
    if found < _LEAST_UNHEARD_OF or found <= expected:
        return 0.0, 0
    return sqrt(2 * (found * log(found / expected) - found + expected)), onset
