"""Step times against expectation: the engine's own slow-moving model, or a fit to its peers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.known import known_sum
from disagg_cluster.planner.diagnose.evidence.readings import Readings
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.evidence.shifts import block_means, block_sums
from disagg_exporter.attribution.cost_model.nnls import solve

_STEPS = ("context", "mixed", "generation")
# A block counts if it has so many seconds of steps.
_LEAST_SECONDS = 0.05
_ROUNDS = 4
# A limit of steps this many times another is not about the same.
_OTHER_LIMIT = 1.5
_LEAST_BLOCKS = 6


def step_seconds(readings: Readings, bins: int) -> Floats:
    """Seconds of all steps in each block."""
    return known_sum(
        np.stack([block_sums(readings.of(f"{kind}_seconds"), bins) for kind in _STEPS]), axis=0
    )


def fitted_slowness(readings: Readings, groups: NDArray[np.intp], bins: int) -> Floats:
    """Logarithm of the step time of each block over its fitted cost in the engine's group.

    The costs of steps, tokens and contexts are fitted over the whole window and all engines of a
    group (non-negative least squares of relative errors, a row a block, without outliers). The fit
    includes peers and past, so only differences are meaningful.
    """
    return _over_fit(step_seconds(readings, bins), _columns(readings, bins), groups)


def fitted_by_kind(readings: Readings, groups: NDArray[np.intp], bins: int, kind: str) -> Floats:
    """`fitted_slowness` of `mixed` or of `generation` steps alone; NaN for groups below 0.

    Assumes that prompt tokens are computed in mixed steps where there are any, and that reading a
    context costs those what it costs generation steps: were it fitted, an engine with slow mixed
    steps, which soon holds more contexts than its peers, would only seem to have costly contexts.
    """
    seconds, charges = _of_kind(readings, bins, "generation")
    if kind == "generation":
        return _over_fit(seconds, charges, groups)
    reading = np.full(seconds.shape, np.nan)
    for rows, fit in _fits(seconds, charges, groups):
        reading[rows] = fit[-1]
    seconds, charges = _of_kind(readings, bins, kind)
    is_known = np.isfinite(reading)
    seconds = seconds - np.where(is_known, reading * charges[..., -1], 0.0)
    charges[..., -1] = np.where(is_known, 0.0, charges[..., -1])
    prefill = block_sums(readings.of("prefill_tokens"), bins)
    more = [np.nan_to_num(prefill), np.nan_to_num(prefill * _prompt_lengths(readings, bins))]
    return _over_fit(seconds, np.concatenate([charges, np.stack(more, axis=2)], axis=2), groups)


def _of_kind(readings: Readings, bins: int, kind: str) -> tuple[Floats, Floats]:
    """Seconds of steps of a kind by block, and what they are charged for: steps, and contexts."""
    steps, seconds = (
        block_sums(readings.of(f"{kind}_{part}"), bins) for part in ("steps", "seconds")
    )
    held = block_means(readings.of("kv_usage") * readings.of("kv_tokens"), bins)
    return seconds, np.stack([steps, np.nan_to_num(steps * held)], axis=2)


def _over_fit(seconds: Floats, columns: Floats, groups: NDArray[np.intp]) -> Floats:
    found = np.full(seconds.shape, np.nan)
    for rows, fit in _fits(seconds, columns, groups):
        used = _enough(seconds[rows], columns[rows])
        expected = np.where(used[..., None], columns[rows], 0.0) @ fit
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(seconds[rows] / expected)
        found[rows] = np.where(used & np.isfinite(ratio), ratio, np.nan)
    return found


def _fits(
    seconds: Floats, columns: Floats, groups: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], Floats]]:
    """The rows of each group with enough blocks, and the cost of each column there."""
    enough = _enough(seconds, columns)
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        used = enough[rows]
        if used.sum() >= _LEAST_BLOCKS:
            yield rows, _robust(columns[rows][used], seconds[rows][used])


def _enough(seconds: Floats, columns: Floats) -> Flags:
    return np.asarray((seconds > _LEAST_SECONDS) & np.isfinite(columns).all(axis=2))


def has_usual_limit(readings: Readings, groups: NDArray[np.intp]) -> Flags:
    """Engines whose steps may have about as many tokens as those of most in their group.

    Unknown limits are taken for usual ones.
    """
    limits = readings.of("step_limit_tokens")
    known = np.isfinite(limits)
    newest = limits.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    latest = limits[np.arange(len(limits)), newest]
    found = np.ones(len(limits), dtype=np.bool_)
    for group in np.unique(groups):
        rows = np.flatnonzero((groups == group) & np.isfinite(latest))
        if len(rows) > 1:
            usual = np.sort(latest[rows])[(len(rows) - 1) // 2]
            found[rows] = (latest[rows] <= _OTHER_LIMIT * usual) & (
                usual <= _OTHER_LIMIT * latest[rows]
            )
    return found


def own_slowness(readings: Readings, bins: int, *kinds: str) -> Floats:
    """Logarithm of step time over what the engine's own slow-moving model expected.

    Of `mixed` steps, of `pure` ones, or of both; 0 is an engine as it has been for hours. NaN where
    it exports none.
    """
    expected, compared = (
        known_sum(
            np.stack([block_sums(readings.of(f"{which}_{kind}_seconds"), bins) for kind in kinds]),
            axis=0,
        )
        for which in ("expected", "compared")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(compared / expected)
        enough = expected > _LEAST_SECONDS / 2
    return np.where(enough & np.isfinite(ratio), ratio, np.nan)


def sampled_deviation(levels: Floats, peers: NDArray[np.intp]) -> Floats:
    """Standard deviation of a slowness between blocks, one for each group of peers.

    A node compares only a sample of many steps with its model, so that now and then a block holds
    a few that are unlike what was learned. A median of differences between blocks misses those; the
    root mean square over all peers does not. It leaves out the largest difference of each engine,
    which may be a change.
    """
    squares = np.sort(np.diff(levels, axis=1) ** 2 / 2, axis=1)  # NaN come last
    widest = np.maximum(np.isfinite(squares).sum(axis=1) - 1, 0)
    kept = np.arange(squares.shape[1]) < widest[:, None]
    groups = int(peers.max(initial=-1)) + 1
    total, count = (
        np.bincount(peers, weights=each, minlength=groups)
        for each in (np.where(kept, squares, 0.0).sum(axis=1), kept.sum(axis=1))
    )
    return np.asarray(np.sqrt(total / np.maximum(count, 1.0))[peers])


def _columns(readings: Readings, bins: int) -> Floats:
    """The regressors of step time, by engine and block; the last axis holds the regressors."""
    context = block_sums(readings.of("context_steps"), bins)
    mixed = block_sums(readings.of("mixed_steps"), bins)
    generation = block_sums(readings.of("generation_steps"), bins)
    prefill = block_sums(readings.of("prefill_tokens"), bins)
    decode = block_sums(readings.of("decode_tokens"), bins)
    held = block_means(readings.of("kv_usage") * readings.of("kv_tokens"), bins)
    prompts = known_sum(np.stack([context, mixed]), axis=0)
    writing = known_sum(np.stack([mixed, generation]), axis=0)
    charges = [
        np.nan_to_num(prompts),
        np.nan_to_num(generation),
        np.nan_to_num(prefill),
        np.nan_to_num(prefill * _prompt_lengths(readings, bins)),
        np.nan_to_num(decode),
        np.nan_to_num(writing * held),
    ]
    return np.stack(charges, axis=2)


def _prompt_lengths(readings: Readings, bins: int) -> Floats:
    """Mean prompt length, which computed tokens attend to; 0 where no prompt ended."""
    tokens = [
        block_sums(readings.of(f"{origin}_tokens"), bins) for origin in ("computed", "cached")
    ]
    ended = [block_sums(readings.of(f"{name}_count"), bins) for name in ("entry", "first")]
    total, count = known_sum(np.stack(tokens), axis=0), known_sum(np.stack(ended), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count >= 1, total / count, 0.0)


def _robust(x: Floats, y: Floats) -> Floats:
    """Non-negative least squares of relative errors, without outlying rows."""
    weights = 1 / y
    kept = np.ones(len(y), dtype=np.bool_)
    fit = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        a = x[kept] * weights[kept, None]
        fit = solve(a.T @ a, a.T @ (y[kept] * weights[kept]))
        off = np.abs(x @ fit * weights - 1)
        before, kept = kept, off <= max(4 * float(np.median(off)), 0.05)
        if (kept == before).all():
            break
    return fit
