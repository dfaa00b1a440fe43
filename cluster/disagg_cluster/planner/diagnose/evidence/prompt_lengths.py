"""How unequal prompts are: few very long ones among many, or all about alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from disagg_cluster.planner.diagnose.evidence.features import Feature, Reading
from disagg_cluster.planner.diagnose.evidence.readings import Place, read_features
from disagg_cluster.planner.diagnose.evidence.series_window import Floats, SeriesWindow
from disagg_cluster.planner.diagnose.evidence.time_grid import SampleBatch

PROMPT_LENGTHS = "disagg_engine_request_prompt_tokens_bucket"
PROMPT_SUMS = "disagg_engine_request_prompt_tokens_sum"
# Prompts in the last bucket are taken to be this much longer than its bound.
_BEYOND = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class PromptLengths:
    """How many prompts of which length came, `[bucket, engine, bin]`; none where nobody tells.

    `least_tokens` are the lower bounds of the buckets, `tokens` what a prompt in each is taken to
    have: the geometric middle. `sums` are the tokens of all prompts, `[engine, bin]`.
    """

    least_tokens: Floats
    tokens: Floats
    counts: Floats
    sums: Floats


def read_prompt_lengths(
    window: SeriesWindow, places: tuple[Place, ...], batch: SampleBatch
) -> PromptLengths:
    """Read the histograms of the engines that have one."""
    bounds = _bounds(window)
    if len(bounds) < 2:
        empty = np.empty(0)
        nothing = np.empty((0, len(places), batch.grid.bins))
        return PromptLengths(empty, empty, nothing, np.full(nothing.shape[1:], np.nan))
    features = [Feature(le, PROMPT_LENGTHS, Reading.GAIN, "le", (le,)) for _, le in bounds]
    features.append(Feature("sum", PROMPT_SUMS, Reading.GAIN))
    read = read_features(window, features, places, "engine", batch)
    below = np.stack([read.of(le) for _, le in bounds])
    counts = np.maximum(np.diff(below, axis=0, prepend=0.0), 0.0)
    uppers = [bound for bound, _ in bounds if np.isfinite(bound)]
    middles = [uppers[0] / 2]
    middles += [float(np.sqrt(a * b)) for a, b in pairwise(uppers)]
    middles.append(_BEYOND * uppers[-1])
    return PromptLengths(np.array([0.0, *uppers]), np.array(middles), counts, read.of("sum"))


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
