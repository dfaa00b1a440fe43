"""The distribution of prompt lengths, and how long prompts are split among engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.features import Feature, Reading
from disagg_cluster.planner.diagnose.evidence.known import divergence, known_mean
from disagg_cluster.planner.diagnose.evidence.readings import Place, Readings, read_features
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats, SeriesWindow
from disagg_cluster.planner.diagnose.evidence.shifts import (
    LEAST_AFTER,
    LEAST_BEFORE,
    log_ratio,
)
from disagg_cluster.planner.diagnose.evidence.time_grid import SampleBatch

PROMPT_LENGTHS = "disagg_engine_request_prompt_tokens_bucket"
PROMPT_SUMS = "disagg_engine_request_prompt_tokens_sum"
# Prompts in the last bucket are assumed to be this many times its lower bound.
_BEYOND = 1.5
# Fewer long prompts than these are no evidence of where they go.
_LEAST_LONG = 6


@dataclass(frozen=True, slots=True, eq=False)
class PromptLengths:
    """Prompts by length, `[bucket, engine, bin]`; empty where no engine exports a histogram.

    `least_tokens` are the lower bounds of the buckets, `tokens` the assumed length of a prompt in
    each: the geometric middle. `sums` are the tokens of all prompts, `[engine, bin]`.
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
    for number in range(1, len(below)):
        # Nodes of another version may have other bounds: none of theirs is in between.
        below[number] = np.where(np.isfinite(below[number]), below[number], below[number - 1])
    counts = np.maximum(np.diff(below, axis=0, prepend=0.0), 0.0)
    uppers = [bound for bound, _ in bounds if np.isfinite(bound)]
    middles = [uppers[0] / 2]
    middles += [float(np.sqrt(a * b)) for a, b in pairwise(uppers)]
    middles.append(_BEYOND * uppers[-1])
    return PromptLengths(np.array([0.0, *uppers]), np.array(middles), counts, read.of("sum"))


def with_unfinished(prompts: PromptLengths, readings: Readings, is_prefill: Flags) -> PromptLengths:
    """`prompts` and, in the newest bin, those that prefill engines have computed much of.

    A histogram counts a prompt when it is done, and the longest take minutes. Meanwhile an engine's
    KV cache grows by what is computed of it: at least by as much as it grows in all since a prompt
    was last done, or none ran, without what was done since. Of several at once only the mean is
    known. One that is not longer than usual yet may have just begun.
    """
    if not len(prompts.tokens) or prompts.sums.shape[1] < 2:
        return prompts
    held = readings.of("kv_usage") * readings.of("kv_tokens")
    running = readings.of("running")
    done = np.nansum([readings.of(name) for name in ("computed_tokens", "cached_tokens")], axis=0)
    is_begin = np.isfinite(held) & ((done > 0) | (running == 0))
    newest = held.shape[1] - 1
    begin = newest - 1 - np.argmax(is_begin[:, :newest][:, ::-1], axis=1)
    grown = held[:, newest] - held[np.arange(len(held)), begin] - done[:, newest]
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = np.where(running[:, newest] >= 1, grown / running[:, newest], 0.0)
    is_told = np.isfinite(prompts.counts[:, :, newest]).all(axis=0)
    is_told &= is_prefill & is_begin[:, :newest].any(axis=1)
    rows = np.flatnonzero(is_told & (tokens > 0))
    if not len(rows):
        return prompts
    counts, sums = prompts.counts.copy(), prompts.sums.copy()
    usual = np.nansum(sums) / max(float(np.nansum(counts)), 1.0)
    for row in rows[tokens[rows] > usual]:
        counts[np.searchsorted(prompts.least_tokens, tokens[row]) - 1, row, newest] += 1
        sums[row, newest] += tokens[row]
    return replace(prompts, counts=counts, sums=sums)


def _bounds(window: SeriesWindow) -> list[tuple[float, str]]:
    """Upper bounds of the buckets in rising order, each with its `le` label."""
    labels = {series.labels.get("le", "") for series in window.of(PROMPT_LENGTHS)}
    found = []
    for le in labels:
        try:
            found.append((float(le), le))
        except ValueError:
            continue
    found.sort()
    return found if found and np.isinf(found[-1][0]) else []


def relative_length(tokens: Floats, count: Floats, peers: NDArray[np.intp]) -> Floats:
    """Logarithm of the mean prompt length of an engine over that of its peers, without itself.

    All are by engine and block: tokens of prompts, and their number; NaN without peers.
    """
    found = np.full(tokens.shape, np.nan)
    for group in np.unique(peers):
        rows = np.flatnonzero(peers == group)
        if len(rows) < 2:
            continue
        own, number = np.nan_to_num(tokens[rows]), np.nan_to_num(count[rows])
        others = log_ratio(own.sum(axis=0) - own, number.sum(axis=0) - number)
        found[rows] = log_ratio(own, number) - others
    return np.where(np.isfinite(found), found, np.nan)


def lengths_by_chance(
    prompts: PromptLengths, served: Floats, peers: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Standard deviations of the logarithm of an engine's mean prompt length in a block by chance.

    The second is relative to its peers' (`relative_length`). Lengths are assumed lognormal as those
    of all peers, and so is the sum of the few in a block (Fenton 1960). `served` are the requests
    by engine and block. 0 without a histogram.
    """
    own, beside = np.zeros(len(peers)), np.zeros(len(peers))
    usual = np.maximum(np.nan_to_num(known_mean(served)), 1.0)
    every = np.nansum(prompts.counts, axis=2)
    for group in np.unique(peers):
        rows = np.flatnonzero(peers == group)
        counts = every[:, rows].sum(axis=1)
        if counts.any():
            squared = np.expm1(lognormal(prompts.tokens, counts)[1] ** 2)
            others = np.maximum(usual[rows].sum() - usual[rows], 1.0)
            own[rows] = np.log1p(squared / usual[rows])
            beside[rows] = own[rows] + np.log1p(squared / others)
    return np.sqrt(own), np.sqrt(beside)


@dataclass(frozen=True, slots=True)
class LengthsAt:
    """Whether prompts have become longer at an engine beside the others, and since which block.

    `longer` is by how much, a logarithm. `gathered_z` is the significance of long prompts that
    concentrate there, `mean_z` that of the mean length.
    """

    onset: int
    longer: float
    gathered_z: float
    mean_z: float


def lengths_at(
    lengths: Floats, counts: Floats, sums: tuple[Floats, Floats], number: int, onset: int
) -> LengthsAt:
    """Compare the prompts of an engine with those of the others, and with before.

    Args:
        lengths: Tokens of a prompt in each bucket.
        counts: Prompts, `[bucket, engine, block]`.
        sums: Tokens of prompts, and their number, by engine and block.
        number: The engine.
        onset: The block since which they are assumed to be longer, as in `gathered_since`.
    """
    begin, gathered = gathered_since(counts, number, onset)
    longer = longer_beside(*sums, number, begin)
    spread = lognormal(lengths, counts.sum(axis=(1, 2)))[1] if counts.any() else 0.0
    return LengthsAt(begin, longer, gathered, longer_z(sums[1], number, begin, longer, spread))


def gathered_since(counts: Floats, number: int, onset: int) -> tuple[int, float]:
    """The block from which on long prompts concentrate on an engine, and its significance as z.

    Args:
        counts: Prompts, `[bucket, engine, block]`, buckets rising.
        number: The engine.
        onset: The block since which they are assumed to. If it is no possible split, the best of
            all splits is taken, and z reduced for that choice.
    """
    splits = range(LEAST_BEFORE, counts.shape[2] - LEAST_AFTER + 1)
    if onset in splits:
        return onset, gathered_z(counts, number, onset)
    found = [(gathered_z(counts, number, split), split) for split in splits]
    z, best = max(found, default=(0.0, onset))
    return best, float(np.sqrt(max(z**2 - 2 * np.log(max(len(found), 1)), 0.0)))


def gathered_z(counts: Floats, number: int, onset: int) -> float:
    """Significance of an engine's share of long prompts above its share of all, and its past, as z.

    Lengths have heavy tails, so a mean over few is noisy. The engine that a prompt goes to is not:
    by chance an engine gets the same share of the prompts above any length as of all. Binomial, the
    signed root of the deviance, for the length above which it is largest.
    """
    since, before = counts[:, :, onset:].sum(axis=2), counts[:, :, :onset].sum(axis=2)
    part = since[:, number].sum() / max(since.sum(), 1.0)
    above, above_before = (np.cumsum(each[::-1], axis=0)[::-1][1:] for each in (since, before))
    # An engine that had more of them before is expected to go on; one more prompt is the prior.
    usual = (above_before[:, number] + part) / (above_before.sum(axis=1) + 1)
    usual = np.maximum(part, usual)
    k, n = above[:, number], above.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviance = 2 * n * divergence(k / n, usual)
    is_enough = (n >= _LEAST_LONG) & (k > n * usual) & (usual < 1)
    return float(np.sqrt(np.where(is_enough, deviance, 0.0).max(initial=0.0)))


def longer_beside(tokens: Floats, count: Floats, number: int, onset: int) -> float:
    """By how much prompts of an engine became longer relative to those of the others.

    A logarithm; 0 where either had none. `tokens` and `count` are by engine and block.
    """
    found = []
    for part in (slice(0, onset), slice(onset, None)):
        own = np.nansum(tokens[number, part]), np.nansum(count[number, part])
        others = np.nansum(tokens[:, part]) - own[0], np.nansum(count[:, part]) - own[1]
        if not min(*own, *others) > 0:
            return 0.0
        found.append(np.log(own[0] / own[1]) - np.log(others[0] / others[1]))
    return float(found[1] - found[0])


def longer_z(count: Floats, number: int, onset: int, longer: float, spread: float) -> float:
    """Significance of longer prompts at an engine relative to the others, by their mean, as z.

    Buckets are coarse; sums are exact, but a sum of few lengths is skewed. Lengths are assumed
    lognormal, their sum Pearson type III, approximated by the cube root (Wilson and Hilferty 1931).
    z is reduced for the choice among engines.

    Args:
        count: Prompts by engine and block.
        number: The engine.
        onset: The block since which they are longer.
        longer: By how much, from `longer_beside`.
        spread: Standard deviation of the logarithm of lengths.
    """
    parts = (count[:, :onset], count[:, onset:])
    own = np.array([np.nansum(part[number]) for part in parts])
    others = np.array([np.nansum(part) for part in parts]) - own
    if longer <= 0 or spread <= 0 or not min(*own, *others) > 0:
        return 0.0
    n = 1 / float((1 / own + 1 / others).sum())
    squared = float(np.expm1(spread**2))
    skew = (squared + 3) * np.sqrt(squared / n)
    deviations = float(np.expm1(longer)) * np.sqrt(n / squared)
    z = 6 / skew * (np.cbrt(skew * deviations / 2 + 1) - 1) + skew / 6
    return float(np.sqrt(max(z**2 - 2 * np.log(len(count)), 0.0)))


def lognormal(tokens: Floats, counts: Floats) -> tuple[float, float]:
    """Mean and standard deviation of the logarithms of lengths counted in buckets."""
    logs = np.log(tokens)
    # Within a bucket the logarithms are assumed uniform.
    widths = np.diff(logs, append=logs[-1] + 1.0)
    middle = float(np.average(logs, weights=counts))
    return middle, float(np.sqrt(np.average((logs - middle) ** 2 + widths**2 / 12, weights=counts)))
