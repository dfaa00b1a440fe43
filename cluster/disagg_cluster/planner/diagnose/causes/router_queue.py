"""Waits of requests before the engines, and a queue there that comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.diagnose.evidence.known import known_mean
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_AFTER, LEAST_BEFORE, block_sums
from disagg_cluster.planner.diagnose.evidence.telling import untelling
from disagg_exporter.model import Role

# A queue that has passed counts as recurring for so many blocks.
_RECENT_BLOCKS = 8
_PASSING_Z, _RAISED_Z = 4.0, 4.0
# Weight, in blocks, of the spread of all blocks as a prior while few precede the onset.
PRIOR_BLOCKS = 3.0
# A scrape between the two counts moves requests to the next block, with their waits at engines: a
# wait above so many times those is no such artefact, nor is one that no block beside it lacks, up
# to this part.
_OF_ENGINES, _LACKING = 2.0, 0.25
# A queue has passed once less than this part of it is left.
_GONE = 0.25
LEAST_NOISE_SECONDS = 0.02
# A lag is accepted if no more than this part of the squared differences is left. (Mixing bins with
# those before lowers the variance by itself: 3 / 4 is left of unrelated counts.)
_ALIKE = 0.6
# Engines that count fewer first tokens than the front end by this part, and so many in a block,
# are not all scraped.
_UNSEEN, _LEAST_UNSEEN = 0.1, 6.0
# A queue that lasts differs from a floor by its rise: by this factor over so many bins at least.
_RISEN, _LEAST_BINS = 1.25, 2


@dataclass(frozen=True, slots=True)
class FrontWait:
    """A wait before the engines: longer than `usual` by `seconds`, since a block.

    `is_floor` is None while unknown; `is_sure` says whether it is more than likely.
    """

    since: int
    usual: float
    seconds: float
    z: float
    is_floor: bool | None = None
    is_sure: bool = False


def router_waits(view: ModelView, bins: int | None = None) -> Floats | None:
    """Mean time to first token at the front end less the waits at the engines, in seconds.

    By block, or by `bins` bins. None where no source observes requests at the front end, or an
    engine does not tell its part; NaN where engines count too few of the requests, as part of them
    is not scraped: what those requests waited for there would be taken for a wait before.
    """
    sums = _sums(view)
    if sums is None:
        return None
    front, *pools = (block_sums(each, bins or view.block_bins) for each in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = front[0] / front[1]
        for seconds, count in pools:
            found = found - seconds / count
    return np.where(np.isfinite(found), found, np.nan)


def _sums(view: ModelView) -> tuple[Floats, ...] | None:
    """Seconds and number of first tokens in each bin: at the front end, then by pool of engines.

    The side that is ahead is delayed by the lag between them.
    """
    observed = view.front_waits()
    if observed is None or untelling(view, np.arange(len(view.engines))).any():
        return None
    front = np.stack(observed)
    pools = _pools(view)
    late = bins_late(front[1], pools[-1][1])
    if late < 0:
        front = _ago(front, -late)
    else:
        pools = [_ago(each, late) for each in pools]
    unseen = np.repeat(_unseen_shares(view, front, pools) > 0, view.block_bins)
    return np.where(np.pad(unseen, (front.shape[1] - len(unseen), 0)), np.nan, front), *pools


def unseen_share(view: ModelView) -> float:
    """The share of users' latest first tokens that engines did not tell; 0 unless it is large."""
    observed = view.front_waits()
    if observed is None or untelling(view, np.arange(len(view.engines))).any():
        return 0.0
    return float(_unseen_shares(view, np.stack(observed), _pools(view))[-LEAST_AFTER:].max())


def _unseen_shares(view: ModelView, front: Floats, pools: Sequence[Floats]) -> Floats:
    """The share of first tokens that some pool did not tell, by block; 0 unless it is large.

    It must be in each block by itself and with the one before, as pages are read at different
    times.
    """
    counts = block_sums(np.stack([each[1] for each in (front, *pools)]), view.block_bins)
    if len(view.entries) and len(view.decoders):
        # Some requests need no decode engine, or no prefill engine.
        unneeded = [2] * bool(len(view.rows_of(Role.MIXED))) + [1] * _computes_prompts(view)
        counts = np.delete(counts, unneeded[:1], axis=0)
    before = _ago(counts, 1.0)
    both = counts + np.where(np.isfinite(before).all(axis=0), before, 0.0)
    shares = []
    for counted, *told in (counts, both):
        short = counted - np.min(told, axis=0)
        with np.errstate(invalid="ignore"):
            is_large = short > np.maximum(_UNSEEN * counted, _LEAST_UNSEEN)
        shares.append(np.where(is_large, short / np.where(is_large, counted, 1.0), 0.0))
    return np.asarray(np.min(shares, axis=0))


def _computes_prompts(view: ModelView) -> bool:
    """Whether decode engines compute prompts that no prefill engine had."""
    tokens = view.changes.fleet.readings.of("prefill_tokens")
    own, every = (
        float(np.nansum(tokens[view.fleet_rows[rows]]))
        for rows in (view.decoders, np.arange(len(view.engines)))
    )
    return own > _UNSEEN * every


def _pools(view: ModelView) -> list[Floats]:
    return [
        np.stack(view.engine_waits(rows)) for rows in (view.entries, view.decoders) if len(rows)
    ]


def bins_late(front: Floats, engines: Floats) -> float:
    """Lag of the front end's first-token counts behind the engines', in bins; negative if ahead.

    Both count the same tokens, but a node reads their pages at different times. The lag minimises
    the squared differences of the counts; 0 where that is hardly less than without.
    """
    least, late = _ALIKE * _squares(front - engines), 0.0
    for sign, soon, behind in ((1.0, engines, front), (-1.0, front, engines)):
        moved, apart = _ago(soon, 1.0) - soon, behind - soon
        known = np.isfinite(moved) & np.isfinite(apart)
        length = float((moved[known] ** 2).sum())
        if length <= 0:
            continue
        part = float(np.clip((apart * moved)[known].sum() / length, 0.0, 1.0))
        left = _squares(behind - _ago(soon, part))
        if left < least:
            least, late = left, sign * part
    return late


def _squares(values: Floats) -> float:
    # The first bin has none before it.
    return float(np.nansum(values[1:] ** 2))


def _ago(values: Floats, part: float) -> Floats:
    """Gains with all bins moved back by part of a bin; bins are the last axis."""
    if part == 0:
        return values
    before = np.concatenate([np.full_like(values[..., :1], np.nan), values[..., :-1]], axis=-1)
    return np.asarray((1 - part) * values + part * before)


def passing_queue(view: ModelView, router: Floats) -> FrontWait | None:
    """A recent queue before the engines, even if it has passed: the limit behind it remains.

    Its cost is the mean over all requests since it began. `router` is `router_waits` by block.
    """
    first = max(len(router) - _RECENT_BLOCKS, LEAST_BEFORE)
    if not (router[first:] > _RAISED_Z * LEAST_NOISE_SECONDS).any():
        return None
    near = _near_seconds(view, len(router))
    splits = range(first, len(router))
    begun = [each for since in splits if (each := _since(view, router, near, since))]
    if not begun:
        return None
    found = max(begun, key=lambda each: each.z)
    high = router >= found.usual + found.seconds / 2
    is_queue = _has_gone(router[found.since :], high[found.since :]) or _rises(view, found.since)
    return replace(found, is_sure=is_queue)


def _since(view: ModelView, router: Floats, near: Floats, since: int) -> FrontWait | None:
    """The wait of all requests since a block, against that before; None if not longer."""
    before = router[:since][np.isfinite(router[:since])]
    if len(before) < LEAST_BEFORE:
        return None
    noise = _noise_seconds(before, router)
    raised = _raised(router, near, noise)
    if raised[:since].any() or not raised[since:].any():
        return None
    usual = max(float(np.median(before)), 0.0)
    seconds = _mean_since(view, since) - usual
    error = noise * np.sqrt(1 / len(before) + 1 / (len(router) - since))
    if not seconds >= _PASSING_Z * error:
        return None
    return FrontWait(since, usual, seconds, float(seconds / error), is_floor=False)


def _noise_seconds(before: Floats, router: Floats) -> float:
    """Standard deviation of the blocks before the onset, shrunk to that of all while they are few.

    A wait below 0 is an artefact of scrapes at different times, which also make others too long
    by as much.
    """
    middle = float(np.nanmedian(router))
    usual = float(np.nanmedian(np.abs(router - middle))) * 1.4826
    squares = float(((before - before.mean()) ** 2).sum()) + PRIOR_BLOCKS * usual**2
    noise = float(np.sqrt(squares / (len(before) - 1 + PRIOR_BLOCKS)))
    return max(noise, -float(np.nanmin(router)) / 2, LEAST_NOISE_SECONDS)


def exported_queue_seconds(view: ModelView) -> float | None:
    """Wait in the router by the length of its queue (Little's law); None if not exported."""
    users = view.changes.fleet.users.get(view.place)
    waiting = None if users is None else users.of("front_waiting")
    arrivals = view.recent("arrivals", view.entries)
    rate = float(np.nansum(arrivals)) / view.block_seconds
    if waiting is None or not np.isfinite(waiting[-4:]).any() or rate <= 0:
        return None
    return float(np.nanmean(waiting[-4:])) / rate


def _near_seconds(view: ModelView, blocks: int) -> Floats:
    """The longest wait at the engines in each block and its neighbours."""
    own = np.zeros(blocks)
    for rows in (view.entries, view.decoders):
        if len(rows):
            with np.errstate(divide="ignore", invalid="ignore"):
                waits = block_sums(np.stack(view.engine_waits(rows)), view.block_bins)
                own += np.nan_to_num(waits[0] / waits[1])
    return np.asarray(np.max([np.roll(np.pad(own, 1), n)[1:-1] for n in (-1, 0, 1)], axis=0))


def _raised(router: Floats, near: Floats, noise_seconds: float) -> np.ndarray:
    """The blocks whose waits are too long for an artefact of scrapes at different times."""
    known = np.nan_to_num(router)
    high = known > _RAISED_Z * noise_seconds
    # What a scrape adds to one block is missing in the next; outside the window that is not known.
    around = np.pad(known, 1, constant_values=-np.inf)
    is_whole = np.minimum(around[:-2], around[2:]) > -_LACKING * known
    beside = np.roll(np.pad(high, 1), 1)[1:-1] | np.roll(np.pad(high, 1), -1)[1:-1]
    return np.asarray(high & (beside | is_whole | (known > _OF_ENGINES * near)))


def _mean_since(view: ModelView, since: int) -> float:
    """Mean wait before the engines of all requests since a block.

    What one scrape counts too early another counts too late: sums are less noisy than blocks.
    """
    sums = _sums(view)
    assert sums is not None
    front, *pools = (_mean_wait(each, view.block_bins, since) for each in sums)
    return front - sum(pools)


def _mean_wait(waits: Floats, bins: int, since: int) -> float:
    seconds, count = (float(np.nansum(each[since:])) for each in block_sums(waits, bins))
    return seconds / count if count > 0 else 0.0


def _has_gone(router: Floats, raised: np.ndarray) -> bool:
    """Whether a wait has fallen again after its onset."""
    high = float(known_mean(router[raised]))
    return bool((router[np.isfinite(router)] < _GONE * high).any())


def _rises(view: ModelView, since: int) -> bool:
    """Whether a new wait grows in every bin, which a floor does not."""
    fine = router_waits(view, 1)
    assert fine is not None
    blocks = view.blocks("arrivals", view.entries).shape[1]
    recent = fine[len(fine) - (blocks - since) * view.block_bins :]
    known = recent[np.isfinite(recent)]
    # The first may begin before the onset.
    grown = known[np.argmax(known > 0) + 1 :] if (known > 0).any() else known[:0]
    if len(grown) < _LEAST_BINS:
        return False
    return bool((np.diff(grown) > 0).all() and grown[-1] >= _RISEN * grown[0])
