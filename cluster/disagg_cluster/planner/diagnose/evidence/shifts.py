"""Change points of ratios: against an engine's own baseline, and against its peers.

Ratios are logarithms of sums over sums in blocks of a few scrapes, so that heavy tails are averaged
before they are judged and a busy block counts no more than an idle one. Their noise is estimated
from their own differences between blocks (median absolute deviation, which a single step does not
move), shrunk towards that of the other engines while there are few blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.evidence.known import known_mean, known_median, known_sum
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.history.load_series import quotient
from disagg_exporter.capacity.curves.curve import MAD_TO_DEVIATION

# Blocks are about this long, and at least two scrapes.
_BLOCK_SECONDS = 15.0
_LEAST_BLOCK_BINS = 2
_RECENT_BLOCKS = 2
# Least blocks after a change point, and before it.
LEAST_AFTER, LEAST_BEFORE = 2, 3
# Lower bound of the standard deviation between blocks, however alike they were.
_LEAST_DEVIATION = 0.02
_PRIOR_BLOCKS = 6.0
# Prior of the lasting spread between engines of a kind, for small groups.
_PEER_DEVIATION = 0.05
_PRIOR_PEERS = 4.0
_MANY_PEERS = 24
_SURELY_CHANGED_Z = 4.0
# A block so many deviations from the former level has clearly left it.
_CLEARLY = 2.0
_MEDIAN_OVER_MEAN = float(np.sqrt(np.pi / 2))


def block_bins(step_seconds: float) -> int:
    """Bins per block: about 15 s, but no fewer than two."""
    return max(_LEAST_BLOCK_BINS, round(_BLOCK_SECONDS / step_seconds))


def block_sums(values: Floats, bins: int) -> Floats:
    """Sums over blocks of `bins` bins, the last of which ends now; unknown bins count as 0.

    A block without a known bin is NaN.
    """
    return known_sum(_in_blocks(values, bins))


def block_means(values: Floats, bins: int) -> Floats:
    """Means over the known bins of each block."""
    return known_mean(_in_blocks(values, bins))


def _in_blocks(values: Floats, bins: int) -> Floats:
    rows, every = values.shape
    blocks = every // bins
    return values[:, every - blocks * bins :].reshape(rows, blocks, bins)


def recent_ratio(over: Floats, under: Floats) -> Floats:
    """Sum over sum in the last blocks, by row; NaN where the denominator is 0."""
    total = np.nansum(over[:, -_RECENT_BLOCKS:], axis=1)
    count = np.nansum(under[:, -_RECENT_BLOCKS:], axis=1)
    return quotient(total, count)


def recent_mean(values: Floats) -> Floats:
    """Mean over the known of the last blocks; NaN without any."""
    return known_mean(values[:, -_RECENT_BLOCKS:])


def log_ratio(over: Floats, under: Floats) -> Floats:
    """Logarithm of a ratio of two block sums; NaN where undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(over / under)
    return np.where(np.isfinite(found) & (under > 0), found, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """How the ratio of each engine changed to its present level; logarithms, NaN where unknown.

    `after` is its level since the block `onset` (of the last blocks, where nothing changed),
    `before` that of the blocks before, `deviation` its standard deviation between blocks. `z` is
    the change in standard errors; 0 without a past.
    """

    after: Floats
    before: Floats
    deviation: Floats
    z: Floats
    onset: NDArray[np.intp]

    @property
    def change(self) -> Floats:
        """By how much the level changed; 0 without a past."""
        return np.nan_to_num(self.after - self.before)

    def of(self, rows: slice | NDArray[np.intp]) -> Shift:
        """The shift of some of the engines."""
        return Shift(
            self.after[rows],
            self.before[rows],
            self.deviation[rows],
            self.z[rows],
            self.onset[rows],
        )


def shift_of(levels: Floats, least_deviation: Floats | float = 0.0, kinds: int = 1) -> Shift:
    """Find the change that persists now, if any: the split of the blocks with the largest z.

    (A likelihood ratio for one change that persists; Page 1954.) It must stand in the last two
    blocks: a change that is over explains nothing now. `least_deviation` is the standard deviation
    of a block by chance alone, however calm the past was. The rows may be those of several `kinds`
    of ratios, one kind after the other.
    """
    rows, blocks = levels.shape
    deviation = np.maximum(_deviations(levels, least_deviation, kinds), least_deviation)
    last = known_mean(levels[:, -LEAST_AFTER:])
    nothing = np.full(rows, blocks, dtype=np.intp)
    if blocks < LEAST_BEFORE + LEAST_AFTER:
        empty = np.full(rows, np.nan)
        return Shift(last, empty, deviation, np.zeros(rows), nothing)
    known = np.isfinite(levels)
    # One outlying block must neither make nor hide a change.
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
    change = after[each, best] - found_before
    beyond = (levels[:, -LEAST_AFTER:] - found_before[:, None]) * np.sign(found_z)[:, None]
    stands_now = _stands(beyond, np.abs(change), deviation, least_deviation)
    found_z = np.where(stands_now, found_z, 0.0)
    onset = np.where(stands_now, splits[best], blocks - LEAST_AFTER).astype(np.intp)
    past = np.where(enough.any(axis=1), _level_before(levels, onset), np.nan)
    now = np.where(stands_now, _level_since(levels, onset), last)
    return Shift(now, past, deviation, found_z, onset)


def _stands(beyond: Floats, change: Floats, deviation: Floats, by_chance: Floats | float) -> Flags:
    """Whether rows still stand `beyond` a former level in their last blocks, after a `change`.

    Each block is past the midpoint, or clearly past that level while a change grows, as queues do.
    Where it is known what a block varies by chance, one that is not surely below the new level may
    lack what the other has beyond it.
    """
    far = np.fmin(change / 2, _CLEARLY * deviation)
    together = (known_mean(beyond) > change / 2) & (np.asarray(by_chance) > 0)
    least = np.where(together, np.fmin(far, change - _SURELY_CHANGED_Z * deviation), far)
    stands = ((beyond > least[:, None]) | np.isnan(beyond)).all(axis=1)
    return np.asarray(stands & np.isfinite(beyond).any(axis=1))


def change_since(
    levels: Floats, deviation: Floats, onset: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """The change of each row at a given block, and its z; 0 with too few blocks on either side."""
    numbers = np.arange(levels.shape[1])
    is_after = numbers >= onset[:, None]
    known = np.isfinite(levels)
    before, after = _level_before(levels, onset), _level_since(levels, onset)
    n_before = (known & ~is_after).sum(axis=1)
    n_after = (known & is_after).sum(axis=1)
    enough = (n_before >= LEAST_BEFORE) & (n_after >= LEAST_AFTER)
    error = deviation * np.sqrt(1 / np.maximum(n_before, 1) + 1 / np.maximum(n_after, 1))
    change = np.where(enough, after - before, 0.0)
    return change, np.where(enough, change / error, 0.0)


def peer_groups(groups: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The rows of each group: one matrix for each size of group, with a group in each row."""
    order = np.argsort(groups, kind="stable")
    _, first, counts = np.unique(groups[order], return_index=True, return_counts=True)
    found = []
    for size in np.unique(counts):
        begins = first[counts == size]
        found.append(order[begins[:, None] + np.arange(size)])
    return found


def standing(levels: Floats, shift: Shift) -> Shift:
    """The shift with its present level taken over all blocks that it has lasted, however many.

    An engine without a significant change has the level of all its blocks, not of the last few.
    `onset` is the first block at that level.
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
    """Distance of each engine from the median of its peers, and its z; both 0 without a peer.

    A group holds engines whose ratios should be the same. The median of a few peers is uncertain:
    its standard error counts, too. `blocks` is the number of blocks that the present levels are
    over; `usual` gives levels for the peers that replace their present ones.
    """
    error = shift.deviation / np.sqrt(np.maximum(blocks, 1))
    apart, z = np.zeros(len(shift.after)), np.zeros(len(shift.after))
    for rows in groups:
        now = shift.after[rows]
        # The median of a large group hardly depends on the engine itself.
        is_large = rows.shape[1] > _MANY_PEERS
        held = now if usual is None else usual[rows]
        rest = held[:, None] if is_large else _of_others(held)
        others = known_median(rest)
        spread = _spread(rest, others)
        noise = error[rows]
        if not is_large:
            noise = np.hypot(noise, _median_error(_of_others(noise), rest))
        difference = np.nan_to_num(now - others)
        apart[rows] = difference
        z[rows] = np.nan_to_num(difference / np.hypot(spread, noise))
    return apart, z


def unless_better(shift: Shift) -> Floats:
    """Levels to compare peers with: present ones, or the former one after a significant decrease.

    An engine that became better does not make its unchanged peers worse.
    """
    is_better = (shift.z <= -_SURELY_CHANGED_Z) & np.isfinite(shift.before)
    return np.asarray(np.where(is_better, shift.before, shift.after))


def _median_error(noises: Floats, values: Floats) -> Floats:
    """Standard error of the median of values, each with its own noise.

    That of the mean for one or two values; for more it is larger by the root of pi / 2.
    """
    known = np.isfinite(values)
    counts = np.maximum(known.sum(axis=-1), 1.0)
    squares = np.where(known, noises**2, 0.0).sum(axis=-1)
    return np.asarray(np.where(counts > 2, _MEDIAN_OVER_MEAN, 1.0) * np.sqrt(squares) / counts)


def _of_others(values: Floats) -> Floats:
    """For each engine of each group, the values of its peers."""
    return np.take(values, _all_but_one(values.shape[1]), axis=1)


@cache
def _all_but_one(count: int) -> NDArray[np.intp]:
    """For each number, a row of all others."""
    numbers = np.arange(count)
    return np.array([np.delete(numbers, each) for each in numbers], dtype=np.intp)


def _spread(values: Floats, middles: Floats) -> Floats:
    """Standard deviation between engines of a kind, shrunk to its prior while they are few."""
    own = MAD_TO_DEVIATION * np.nan_to_num(known_median(np.abs(values - middles[..., None])))
    weight = np.maximum(np.isfinite(values).sum(axis=-1) - 1.0, 0.0)
    usual = _PRIOR_PEERS * _PEER_DEVIATION**2
    return np.asarray(np.sqrt((weight * own**2 + usual) / (weight + _PRIOR_PEERS)))


def _deviations(levels: Floats, by_chance: Floats | float, kinds: int) -> Floats:
    """Standard deviation between blocks of each row, shrunk to the median of all rows of a kind.

    Where the deviation by chance is given for each row, the multiple of it is what is shrunk.
    """
    scale = np.where(np.asarray(by_chance) > 0, by_chance, 1.0)
    levels = levels / (scale[:, None] if scale.ndim else scale)
    steps = np.abs(np.diff(levels, axis=1))
    counts = np.isfinite(steps).sum(axis=1).astype(np.float64)
    own = MAD_TO_DEVIATION / np.sqrt(2) * known_median(steps)
    usual = known_median(own.reshape(kinds, -1))
    prior = np.repeat(np.where(np.isfinite(usual), usual, 0.3), len(own) // kinds)
    own = np.where(np.isfinite(own), own, prior)
    shrunk = (counts * own**2 + _PRIOR_BLOCKS * prior**2) / (counts + _PRIOR_BLOCKS)
    return np.asarray(np.maximum(scale * np.sqrt(shrunk), _LEAST_DEVIATION))


def _level_before(levels: Floats, onset: NDArray[np.intp]) -> Floats:
    numbers = np.arange(levels.shape[1])
    return known_median(np.where(numbers < onset[:, None], levels, np.nan))


def _level_since(levels: Floats, onset: NDArray[np.intp]) -> Floats:
    numbers = np.arange(levels.shape[1])
    return known_median(np.where(numbers >= onset[:, None], levels, np.nan))
