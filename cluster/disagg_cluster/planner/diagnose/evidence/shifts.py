"""Whether a ratio has changed to what it is now: against its own past, and against peers.

Ratios are looked at as logarithms of sums over sums in blocks of some scrapes, so that heavy tails
are averaged before they are judged, and a busy block does not count more than an idle one. How far
they stray without any cause is read off their own differences from block to block (median absolute
deviation, which no single step moves), shrunk to that of the other engines while blocks are few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.known import known_mean, known_median, known_sum
from disagg_cluster.planner.diagnose.evidence.series_window import Floats

# Blocks are about this long, and two scrapes at least.
_BLOCK_SECONDS = 15.0
_LEAST_BLOCK_BINS = 2
_RECENT_BLOCKS = 2
# A change must have lasted so many blocks, and stood on so many before it.
LEAST_AFTER, LEAST_BEFORE = 2, 3
_MAD_TO_DEVIATION = 1.4826
# No ratio is known better than this from block to block, however alike they were.
_LEAST_DEVIATION = 0.02
_PRIOR_BLOCKS = 6.0
# How far engines of a kind stray from each other for good, while few of them say.
_PEER_DEVIATION = 0.05
_PRIOR_PEERS = 4.0
_MANY_PEERS = 24
_SURELY_CHANGED_Z = 4.0
_MEDIAN_OVER_MEAN = float(np.sqrt(np.pi / 2))


def block_bins(step_seconds: float, least_bins: int = _LEAST_BLOCK_BINS) -> int:
    """How many bins make a block, or a shorter one of fewer bins."""
    return max(least_bins, round(_BLOCK_SECONDS / step_seconds))


def block_sums(values: Floats, bins: int) -> Floats:
    """Sums over blocks of so many bins, the last of which ends now; unknown bins count nothing.

    A block of which nothing is known is NaN.
    """
    return known_sum(_in_blocks(values, bins))


def block_means(values: Floats, bins: int) -> Floats:
    """Means over blocks, of the bins that are known."""
    return known_mean(_in_blocks(values, bins))


def _in_blocks(values: Floats, bins: int) -> Floats:
    rows, every = values.shape
    blocks = every // bins
    return values[:, every - blocks * bins :].reshape(rows, blocks, bins)


def recent_ratio(over: Floats, under: Floats) -> Floats:
    """Sum over sum in the last blocks, of each row; NaN where nothing is under the line."""
    total = np.nansum(over[:, -_RECENT_BLOCKS:], axis=1)
    count = np.nansum(under[:, -_RECENT_BLOCKS:], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count > 0, total / count, np.nan)


def recent_mean(values: Floats) -> Floats:
    """Mean over the last blocks of what is known; NaN where nothing is."""
    return known_mean(values[:, -_RECENT_BLOCKS:])


def log_ratio(over: Floats, under: Floats, floor: float = 0.0) -> Floats:
    """Logarithm of a ratio of two block sums; NaN where it has none.

    `floor` is added to both, where a numerator may be 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log((over + floor) / (under + floor))
    return np.where(np.isfinite(found) & (under > 0), found, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """Of each engine, how a ratio changed to what it is now; logarithms, NaN where not known.

    `after` is its level since the block `onset` (the last blocks, where nothing changed), `before`
    that of the blocks before, `deviation` how far it strays from block to block. `z` is how many
    of its standard errors the change is; 0 for who has no past.
    """

    after: Floats
    before: Floats
    deviation: Floats
    z: Floats
    onset: NDArray[np.intp]

    @property
    def change(self) -> Floats:
        """By how much the level changed; 0 for who has no past."""
        return np.nan_to_num(self.after - self.before)


def shift_of(levels: Floats, least_deviation: Floats | float = 0.0) -> Shift:
    """Find the change that stands now, if any: the split of the blocks that divides them best.

    (A likelihood ratio for one change that persists; Page 1954.) The last two blocks must both
    be more than half-way changed: what is over has no cause now. `least_deviation` is what chance
    alone makes of a block, however calm the past was.
    """
    rows, blocks = levels.shape
    deviation = np.maximum(_deviations(levels, least_deviation), least_deviation)
    last = _last_levels(levels, LEAST_AFTER)
    nothing = np.full(rows, blocks, dtype=np.intp)
    if blocks < LEAST_BEFORE + LEAST_AFTER:
        empty = np.full(rows, np.nan)
        return Shift(last, empty, deviation, np.zeros(rows), nothing)
    known = np.isfinite(levels)
    # One wild block must neither make nor hide a change.
    middle = known_median(levels)[:, None]
    reach = 8 * deviation[:, None] + np.abs(known_median(np.abs(levels - middle))[:, None]) * 3
    calm = np.where(known, np.clip(levels, middle - reach, middle + reach), 0.0)
    sums, counts = np.cumsum(calm, axis=1), np.cumsum(known, axis=1)
    splits = np.arange(LEAST_BEFORE, blocks - LEAST_AFTER + 1)
    n_before = counts[:, splits - 1].astype(np.float64)
    n_after = counts[:, -1:] - n_before
    enough = (n_before >= LEAST_BEFORE) & (n_after >= LEAST_AFTER)
    with np.errstate(divide="ignore", invalid="ignore"):
        before = sums[:, splits - 1] / n_before
        after = (sums[:, -1:] - sums[:, splits - 1]) / n_after
        error = deviation[:, None] * np.sqrt(1 / n_before + 1 / n_after)
        z = np.where(enough, (after - before) / error, 0.0)
    z = np.nan_to_num(z)
    best = np.argmax(np.abs(z), axis=1)
    each = np.arange(rows)
    found_z, found_before = z[each, best], before[each, best]
    half = found_before + (after[each, best] - found_before) / 2
    sign = np.sign(found_z)
    recent = levels[:, -LEAST_AFTER:]
    with np.errstate(invalid="ignore"):
        stands = ((recent - half[:, None]) * sign[:, None] > 0) | np.isnan(recent)
    stands_now = stands.all(axis=1) & np.isfinite(recent).any(axis=1)
    found_z = np.where(stands_now, found_z, 0.0)
    onset = np.where(stands_now, splits[best], blocks - LEAST_AFTER).astype(np.intp)
    past = np.where(enough.any(axis=1), _level_before(levels, onset), np.nan)
    now = np.where(stands_now, _level_since(levels, onset), last)
    return Shift(now, past, deviation, found_z, onset)


def change_since(
    levels: Floats, deviation: Floats, onset: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """By how much each row changed at a block that is given, and in how many standard errors.

    Both are 0 where there are too few blocks on either side.
    """
    numbers = np.arange(levels.shape[1])
    is_after = numbers >= onset[:, None]
    known = np.isfinite(levels)
    before = known_median(np.where(is_after, np.nan, levels))
    after = known_median(np.where(is_after, levels, np.nan))
    n_before = (known & ~is_after).sum(axis=1)
    n_after = (known & is_after).sum(axis=1)
    enough = (n_before >= LEAST_BEFORE) & (n_after >= LEAST_AFTER)
    error = deviation * np.sqrt(1 / np.maximum(n_before, 1) + 1 / np.maximum(n_after, 1))
    change = np.where(enough, after - before, 0.0)
    return change, np.where(enough, change / error, 0.0)


def peer_groups(groups: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The rows of each group, those of equally large groups together: a matrix, a group a row."""
    order = np.argsort(groups, kind="stable")
    _, first, counts = np.unique(groups[order], return_index=True, return_counts=True)
    found = []
    for size in np.unique(counts):
        begins = first[counts == size]
        found.append(order[begins[:, None] + np.arange(size)])
    return found


def standing(levels: Floats, shift: Shift) -> Shift:
    """A shift whose level now is that of all blocks that it has stood for, however many.

    Who has not surely changed has been as it is ever since: nothing where the last blocks say
    otherwise. `onset` is where it began, the first block at the earliest.
    """
    has_changed = np.abs(shift.z) >= _SURELY_CHANGED_Z
    onset = np.where(has_changed, shift.onset, 0).astype(np.intp)
    after = np.where(has_changed, shift.after, known_median(levels))
    return replace(shift, after=after, onset=onset)


def peer_z(
    shift: Shift,
    groups: list[NDArray[np.intp]],
    blocks: NDArray[np.intp] | int = LEAST_AFTER,
    usual: Floats | None = None,
) -> tuple[Floats, Floats]:
    """How far each engine is from the median of the others of its group, and in how many errors.

    A group is of engines whose ratios should be the same. Both are 0 for who has no peer. The
    median of a few peers is no better known than they are: its error counts, too. `blocks` is over
    how many the levels now are; `usual` is what others are held against, where not as they are now.
    """
    error = shift.deviation / np.sqrt(np.maximum(blocks, 1))
    apart, z = np.zeros(len(shift.after)), np.zeros(len(shift.after))
    for rows in groups:
        now = shift.after[rows]
        # Of many, one more or less moves nothing.
        is_large = rows.shape[1] > _MANY_PEERS
        held = now if usual is None else usual[rows]
        rest = held[:, None] if is_large else held[:, _all_but_one(rows.shape[1])]
        others = known_median(rest)
        spread = _spread(rest, others)
        noise = error[rows]
        if not is_large:
            noise = np.hypot(noise, _median_error(noise[:, _all_but_one(rows.shape[1])], rest))
        difference = np.nan_to_num(now - others)
        apart[rows] = difference
        z[rows] = np.nan_to_num(difference / np.hypot(spread, noise))
    return apart, z


def unless_better(shift: Shift) -> Floats:
    """What others may be held against: levels now, but of who has surely become less what was.

    That one had luck makes no other worse than it has always been.
    """
    is_better = (shift.z <= -_SURELY_CHANGED_Z) & np.isfinite(shift.before)
    return np.asarray(np.where(is_better, shift.before, shift.after))


def _median_error(noises: Floats, values: Floats) -> Floats:
    """Standard error of the median of values that are known each with its own noise.

    That of their mean, of two or one; of more the median's is larger by the root of half of pi.
    """
    known = np.isfinite(values)
    counts = np.maximum(known.sum(axis=-1), 1.0)
    squares = np.where(known, noises**2, 0.0).sum(axis=-1)
    return np.asarray(np.where(counts > 2, _MEDIAN_OVER_MEAN, 1.0) * np.sqrt(squares) / counts)


@cache
def _all_but_one(count: int) -> NDArray[np.intp]:
    """The numbers of all others, a row for each."""
    numbers = np.arange(count)
    return np.array([np.delete(numbers, each) for each in numbers], dtype=np.intp)


def _spread(values: Floats, middles: Floats) -> Floats:
    """How far engines of a kind stray from each other, shrunk to the usual while they are few."""
    seen = _MAD_TO_DEVIATION * np.nan_to_num(known_median(np.abs(values - middles[..., None])))
    weight = np.maximum(np.isfinite(values).sum(axis=-1) - 1.0, 0.0)
    usual = _PRIOR_PEERS * _PEER_DEVIATION**2
    return np.asarray(np.sqrt((weight * seen**2 + usual) / (weight + _PRIOR_PEERS)))


def _deviations(levels: Floats, by_chance: Floats | float) -> Floats:
    """Standard deviation from block to block of each row, shrunk to the median of all rows.

    Where chance is known for each row it is how far beyond their chance rows stray that is alike.
    """
    scale = np.where(np.asarray(by_chance) > 0, by_chance, 1.0)
    levels = levels / (scale[:, None] if scale.ndim else scale)
    steps = np.abs(np.diff(levels, axis=1))
    counts = np.isfinite(steps).sum(axis=1).astype(np.float64)
    own = _MAD_TO_DEVIATION / np.sqrt(2) * known_median(steps)
    usual = own[np.isfinite(own)]
    prior = float(np.median(usual)) if len(usual) else 0.3
    own = np.where(np.isfinite(own), own, prior)
    shrunk = (counts * own**2 + _PRIOR_BLOCKS * prior**2) / (counts + _PRIOR_BLOCKS)
    return np.asarray(np.maximum(scale * np.sqrt(shrunk), _LEAST_DEVIATION))


def _last_levels(levels: Floats, blocks: int) -> Floats:
    return known_mean(levels[:, -blocks:])


def _level_before(levels: Floats, onset: NDArray[np.intp]) -> Floats:
    numbers = np.arange(levels.shape[1])
    return known_median(np.where(numbers < onset[:, None], levels, np.nan))


def _level_since(levels: Floats, onset: NDArray[np.intp]) -> Floats:
    numbers = np.arange(levels.shape[1])
    return known_median(np.where(numbers >= onset[:, None], levels, np.nan))
