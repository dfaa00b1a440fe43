"""What users wait for before the engines, and a queue there that comes and goes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.diagnose.evidence.known import known_mean
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE, block_sums

# How far back a queue that has come and gone is still one that comes again.
_RECENT_BLOCKS = 8
_PASSING_Z, _RAISED_Z = 6.0, 4.0
# While few blocks were before, all of them count as so many more.
PRIOR_BLOCKS = 3.0
# A scrape between its two counts moves requests to the next block, with all that engines made them
# wait: more than so many times that is no such thing.
_OF_ENGINES = 2.0
# It is gone where less than this part of it is left.
_GONE = 0.25
LEAST_NOISE_SECONDS = 0.02
# One end shows first tokens later if no more of the squares between them is left. (Bins that are
# mixed with those before stray less by themselves: 3 / 4 is left of what is not alike at all.)
_ALIKE = 0.6
# While it lasts it is told from a floor by its rise, by this factor over some bins at least.
_RISEN, _LEAST_BINS = 1.25, 2


@dataclass(frozen=True, slots=True)
class FrontWait:
    """A wait before the engines: by how many `seconds` it is longer than `usual`, since a block.

    `is_floor` where that is known already; `is_sure` says whether it is more than likely.
    """

    since: int
    usual: float
    seconds: float
    z: float
    is_floor: bool | None = None
    is_sure: bool = False


def router_waits(view: ModelView, bins: int | None = None) -> Floats | None:
    """Mean seconds between a request's arrival at the door and the engines' own waits.

    By block, or over so many bins each. None where nobody sees requests from the door on.
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
    """Seconds and number of first tokens in each bin: at the door, then by pool of engines.

    Whoever shows first tokens before the other does is asked for them as long ago.
    """
    told = view.front_waits()
    if told is None:
        return None
    front = np.stack(told)
    pools = [
        np.stack(view.engine_waits(rows)) for rows in (view.entries, view.decoders) if len(rows)
    ]
    late = bins_late(front[1], pools[-1][1])
    if late < 0:
        return _ago(front, -late), *pools
    return front, *(_ago(each, late) for each in pools)


def bins_late(front: Floats, engines: Floats) -> float:
    """By how much of a bin a door shows first tokens later than engines do; below 0: sooner.

    Both count the same ones, but a node reads their pages at two times. It is the delay of either
    that leaves the least squares between their counts; 0 where that is hardly less than without.
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
    """Gains of bins that each end so much of a bin earlier; the last axis are bins."""
    if part == 0:
        return values
    before = np.concatenate([np.full_like(values[..., :1], np.nan), values[..., :-1]], axis=-1)
    return np.asarray((1 - part) * values + part * before)


def passing_queue(view: ModelView, router: Floats) -> FrontWait | None:
    """A queue before the engines that has come, be it over again: it is the limit that stays.

    It costs what it made requests wait in the mean of all that came since. `router` is as of
    `router_waits`, by block.
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
    """The wait of all that came since a block, beside what it was before; None if no longer."""
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
    """How far a block strays, by those before a moment, shrunk to all while these are few.

    No wait is below nothing: what is was put there by scrapes at two times, which also put as much
    where it does not belong.
    """
    middle = float(np.nanmedian(router))
    usual = float(np.nanmedian(np.abs(router - middle))) * 1.4826
    squares = float(((before - before.mean()) ** 2).sum()) + PRIOR_BLOCKS * usual**2
    noise = float(np.sqrt(squares / (len(before) - 1 + PRIOR_BLOCKS)))
    return max(noise, -float(np.nanmin(router)) / 2, LEAST_NOISE_SECONDS)


def queue_seconds_told(view: ModelView) -> float | None:
    """How long requests wait in the router by what it tells of its queue; None if it does not."""
    users = view.changes.fleet.users.get(view.place)
    waiting = None if users is None else users.of("front_waiting")
    arrivals = view.recent("arrivals", view.entries)
    rate = float(np.nansum(arrivals)) / view.block_seconds
    if waiting is None or not np.isfinite(waiting[-4:]).any() or rate <= 0:
        return None
    return float(np.nanmean(waiting[-4:])) / rate


def _near_seconds(view: ModelView, blocks: int) -> Floats:
    """The longest wait at the engines in each block or beside it."""
    own = np.zeros(blocks)
    for rows in (view.entries, view.decoders):
        if len(rows):
            with np.errstate(divide="ignore", invalid="ignore"):
                waits = block_sums(np.stack(view.engine_waits(rows)), view.block_bins)
                own += np.nan_to_num(waits[0] / waits[1])
    return np.asarray(np.max([np.roll(np.pad(own, 1), n)[1:-1] for n in (-1, 0, 1)], axis=0))


def _raised(router: Floats, near: Floats, noise_seconds: float) -> np.ndarray:
    """In which blocks requests waited longer than scrapes at two times make it look."""
    known = np.nan_to_num(router)
    high = known > _RAISED_Z * noise_seconds
    # What a scrape has put into one block it has taken from the next.
    beside = np.roll(np.pad(high, 1), 1)[1:-1] | np.roll(np.pad(high, 1), -1)[1:-1]
    return np.asarray(high & (beside | (known > _OF_ENGINES * near)))


def _mean_since(view: ModelView, since: int) -> float:
    """Seconds before the engines of all requests since a block.

    What one scrape counts too early another counts too late: sums do not stray as blocks do.
    """
    sums = _sums(view)
    assert sums is not None
    front, *pools = (_quotient(each, view.block_bins, since) for each in sums)
    return front - sum(pools)


def _quotient(waits: Floats, bins: int, since: int) -> float:
    seconds, count = (float(np.nansum(each[since:])) for each in block_sums(waits, bins))
    return seconds / count if count > 0 else 0.0


def _has_gone(router: Floats, raised: np.ndarray) -> bool:
    """Whether a wait has been away again after it came."""
    high = float(known_mean(router[raised]))
    return bool((router[np.isfinite(router)] < _GONE * high).any())


def _rises(view: ModelView, since: int) -> bool:
    """Whether a wait that has only just come grows by every bin, which no floor does."""
    fine = router_waits(view, 1)
    assert fine is not None
    blocks = view.blocks("arrivals", view.entries).shape[1]
    recent = fine[len(fine) - (blocks - since) * view.block_bins :]
    known = recent[np.isfinite(recent)]
    # The first of them may hold some time before.
    grown = known[np.argmax(known > 0) + 1 :] if (known > 0).any() else known[:0]
    if len(grown) < _LEAST_BINS:
        return False
    return bool((np.diff(grown) > 0).all() and grown[-1] >= _RISEN * grown[0])
