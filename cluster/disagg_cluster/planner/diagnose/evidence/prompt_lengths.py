"""How unequal prompts are: few very long ones among many, or all about alike."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from disagg_cluster.planner.diagnose.evidence.features import Feature, Reading
from disagg_cluster.planner.diagnose.evidence.readings import Place, read_features
from disagg_cluster.planner.diagnose.evidence.series_window import Floats, SeriesWindow
from disagg_cluster.planner.diagnose.evidence.time_grid import SampleBatch

PROMPT_LENGTHS = "disagg_engine_request_prompt_tokens_bucket"
# Prompts in the last bucket are taken to be this much longer than its bound.
_BEYOND = 1.5


def read_prompt_squares(
    window: SeriesWindow, places: tuple[Place, ...], batch: SampleBatch
) -> Floats:
    """Number of prompts, and sums of their lengths and of the squares of these, by engine and bin.

    `[which, engine, bin]`; from the buckets of the engines' histograms, each prompt at the
    geometric middle of its bucket. NaN for engines that have none.
    """
    bounds = _bounds(window)
    found = np.full((3, len(places), batch.grid.bins), np.nan)
    if len(bounds) < 2:
        return found
    features = [Feature(le, PROMPT_LENGTHS, Reading.GAIN, "le", (le,)) for _, le in bounds]
    read = read_features(window, features, places, "engine", batch)
    below = np.stack([read.of(le) for _, le in bounds])
    counts = np.maximum(np.diff(below, axis=0, prepend=0.0), 0.0)
    uppers = [bound for bound, _ in bounds if np.isfinite(bound)]
    middles = [uppers[0] / 2]
    middles += [float(np.sqrt(a * b)) for a, b in pairwise(uppers)]
    middles.append(_BEYOND * uppers[-1])
    lengths = np.array(middles[: len(bounds)])[:, None, None]
    for power in range(3):
        found[power] = (counts * lengths**power).sum(axis=0)
    return found


def _bounds(window: SeriesWindow) -> list[tuple[float, str]]:
    """Upper bounds of the buckets that all engines share, with the words for them, rising."""
    told = {series.labels.get("le", "") for series in window.of(PROMPT_LENGTHS)}
    found = []
    for le in told:
        try:
            found.append((float(le), le))
        except ValueError:
            continue
    found.sort()
    return found if found and np.isinf(found[-1][0]) else []
