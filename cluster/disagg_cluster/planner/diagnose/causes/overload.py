"""Whether a whole pool of engines is overloaded, or one by more than its share of requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from disagg_cluster.planner.diagnose.causes.suspicion import LIKELY_Z, SURE_WAIT_Z, Adverse
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shares import larger_share_z
from disagg_cluster.planner.diagnose.evidence.shifts import shift_of

_BUSY = 0.93
_LEAST_WAITING = 1.0
_HAS_TIME = 0.75
# At most this share of the live engines may have room.
_MOST_IDLE = 0.25
# A busy pool has queues that come and go within the target, so waits must reach it; where the load
# has grown, half of it is enough.
_LEAST_OF_TARGET, _LEAST_GROWN = 1.0, 0.5
_LEAST_LOAD, _LOAD_Z = 1.1, 4.0
# A larger share of the requests than a fair one by this factor. Without some queue, or being busy
# to this part, it delays none.
LEAST_SHARE = 1.25
_LEAST_GROWN_SHARE, _BUSY_BY_SHARE, _QUEUED_BY_SHARE = 1.1, 0.5, 0.5
# More requests pile up at a pool if the number in flight has grown in each of so many blocks, by
# this part of those that arrived, to so many times what the load explains.
_PILING_BLOCKS, _LEAST_LEFT_OVER, _BEYOND_LOAD = 2, 0.1, 1.5
# Where an engine is gone, the others are overloaded once they are busy to this part and requests
# wait longer than before by this part of the target: why is known.
_BUSY_ALONE, _LEAST_LONGER = 0.85, 0.1
# A queue that chance hardly builds, and by how much it exceeds every other.
_LEAST_QUEUE, _TIMES_BESIDE, _NEARLY_LATE = 5.0, 5.0, 0.75


def busy_ratio(view: ModelView, rows: Rows) -> Floats:
    """Share of the last blocks in which an engine ran steps or its host prepared them."""
    steps = view.recent("step_seconds", rows)
    gaps = np.nan_to_num(view.recent("gap_seconds", rows))
    return np.asarray((steps + gaps) / view.block_seconds)


def is_saturated(view: ModelView, rows: Rows) -> np.ndarray:
    """Which engines are busy all the time while requests wait in each of the last blocks."""
    waiting = view.blocks("waiting", rows)[:, -2:]
    with np.errstate(invalid="ignore"):
        piled = (waiting >= _LEAST_WAITING).all(axis=1)
        return np.asarray(piled & (busy_ratio(view, rows) >= _BUSY))


def is_overloaded(view: ModelView, rows: Rows, wait_seconds: Floats, *, has_grown: bool) -> bool:
    """Whether a pool is overloaded so that users wait.

    `wait_seconds` is each engine's part of the mean wait; `has_grown` says that the load has grown.
    """
    alive = view.blocks("alive", rows)[:, -1]
    if not alive.any():
        return False
    saturated = is_saturated(view, rows)[alive]
    now = float(np.nansum(wait_seconds[alive]))
    target, part = view.targets.ttft_seconds, _LEAST_GROWN if has_grown else _LEAST_OF_TARGET
    is_late = not np.isfinite(target) or now >= part * target
    return bool(is_late and saturated.mean() >= 1 - _MOST_IDLE)


def is_piling_up(view: ModelView, rows: Rows, load: Adverse) -> bool:
    """Whether more requests arrive at a pool than leave it, since its load has grown.

    With more load more requests are in flight (Little 1961), but not ever more, nor more than in
    proportion: then each stays longer, and a queue is only a question of time.
    """
    arrived = np.nansum(view.blocks("arrivals", rows), axis=0)
    in_flight = np.nansum(view.blocks("running", rows), axis=0)
    in_flight += np.nansum(view.blocks("waiting", rows), axis=0)
    onset = int(load.onset[0]) if len(rows) else 0
    if not (load.size > 0).any() or not 0 < onset <= len(in_flight) - _PILING_BLOCKS:
        return False
    recent = in_flight[-_PILING_BLOCKS - 1 :]
    left_over = (recent[-1] - recent[0]) / max(float(arrived[-_PILING_BLOCKS:].sum()), 1.0)
    in_proportion = float(np.exp(load.size[0]) * np.median(in_flight[:onset]))
    return bool(
        (np.diff(recent) > 0).all()
        and left_over >= _LEAST_LEFT_OVER
        and recent[-1] >= _BEYOND_LOAD * in_proportion
    )


def is_short_of_lost(view: ModelView, rows: Rows, longer_seconds: Floats) -> bool:
    """Whether a pool cannot do the work of an engine that is gone as well.

    `longer_seconds` is what each engine adds to the mean wait since.
    """
    alive = view.blocks("alive", rows)[:, -1]
    longer = float(np.nansum(longer_seconds[alive])) if alive.any() else 0.0
    least_seconds = _LEAST_LONGER * view.targets.ttft_seconds
    return longer >= least_seconds and busy_ratio(view, rows)[alive].mean() >= _BUSY_ALONE


def is_gone(view: ModelView, row: int) -> bool:
    """Whether an engine that was alive has gone."""
    alive = view.blocks("alive", np.array([row]))[0]
    return bool(alive.any() and not alive[-2:].any())


def lost_block(view: ModelView, rows: Rows) -> int:
    """The last live block of the engine that went last; the number of blocks if none or all did."""
    alive = view.blocks("alive", rows)
    gone = [row for row, each in enumerate(rows) if is_gone(view, int(each))]
    if not gone or len(gone) == len(rows):
        return int(alive.shape[1])
    return max(int(np.flatnonzero(alive[row])[-1]) for row in gone)


def has_room_beside(view: ModelView, rows: Rows) -> np.ndarray:
    """The one saturated engine while every other has idle time."""
    saturated, has_time = is_saturated(view, rows), busy_ratio(view, rows) < _HAS_TIME
    alone = saturated & (saturated.sum() == 1) & (len(rows) > 1)
    return np.asarray(alone & (has_time | saturated).all())


def has_only_queue(view: ModelView, rows: Rows, wait_seconds: Floats) -> np.ndarray:
    """The one engine with a lasting queue and a late mean wait while hardly a request waits beside.

    `wait_seconds` is the mean wait at each engine.
    """
    waiting = np.nan_to_num(view.blocks("waiting", rows)[:, -2:])
    found = np.zeros(len(rows), dtype=np.bool_)
    if len(rows) < 2 or not waiting.size:
        return found
    longest = waiting.min(axis=1)
    row = int(longest.argmax())
    beside = float(np.delete(waiting, row, axis=0).max())
    target = view.targets.ttft_seconds
    is_late = not np.isfinite(target) or wait_seconds[row] >= _NEARLY_LATE * target
    found[row] = is_late and longest[row] >= max(_LEAST_QUEUE, _TIMES_BESIDE * beside)
    return found


def is_starting(view: ModelView, row: int) -> bool:
    """Whether an engine was still starting in the last blocks."""
    starting = view.recent("starting_seconds", np.array([row]))[0]
    return bool(np.nan_to_num(starting) > 0)


def more_arrivals(view: ModelView, rows: Rows) -> Adverse:
    """Growth of the mean number of arrivals per live engine, beyond chance (Poisson)."""
    alive = view.blocks("alive", rows)
    arrived = np.nansum(np.where(alive, view.blocks("arrivals", rows), 0.0), axis=0)
    each = arrived / np.maximum(alive.sum(axis=0), 1)
    by_chance = 1 / np.sqrt(max(float(arrived.mean()), 0.5)) if arrived.size else 0.0
    shift = shift_of(np.log(np.maximum(each, 0.5) / view.block_seconds)[None], by_chance)
    change = float(shift.change[0]) if shift.z[0] >= _LOAD_Z else 0.0
    size = change if change >= np.log(_LEAST_LOAD) else 0.0
    whole = np.full(len(rows), size)
    return Adverse(
        whole,
        np.where(whole > 0, float(shift.z[0]), 0.0),
        np.full(len(rows), int(shift.onset[0]), dtype=np.intp),
    )


def share_that_delays(view: ModelView, rows: Rows, share: Adverse, wait_z: Floats) -> Adverse:
    """`share` where it is larger than a fair one and the engine has no idle time.

    `wait_z` is the significance of longer waits at each engine.
    """
    above = np.nan_to_num(view.changed("share", rows).shift.after) >= np.log(LEAST_SHARE)
    above &= _has_work(view, rows)
    # A significant wait at an engine with a larger share is likely due to it.
    likely = (wait_z >= SURE_WAIT_Z) & (share.size > 0)
    return replace(
        share,
        size=np.where(above, share.size, 0.0),
        z=np.where(likely, np.maximum(share.z, LIKELY_Z), share.z),
    )


def larger_since(view: ModelView, rows: Rows, onset: Rows) -> Adverse:
    """By how much each engine has a larger share of the requests since a block than before.

    Beside a fair share among the engines that are alive. By all counts, which are less noisy than
    shares of blocks. 0 where it is no larger than a fair one, or delays none.
    """
    alive = view.blocks("alive", rows)
    arrived = np.where(alive, np.nan_to_num(view.blocks("arrivals", rows)), 0.0)
    fair = arrived.sum(axis=0) / np.maximum(alive.sum(axis=0), 1)
    is_since = np.arange(arrived.shape[1]) >= onset[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        since, before = (
            np.log((arrived * chosen).sum(axis=1) / (fair * chosen).sum(axis=1))
            for chosen in (is_since, ~is_since)
        )
        grown = since - before
        is_larger = (since >= np.log(LEAST_SHARE)) & (grown >= np.log(_LEAST_GROWN_SHARE))
    is_larger &= np.isfinite(grown) & _has_work(view, rows)
    z = larger_share_z(arrived, np.zeros(len(rows), dtype=np.intp), onset)
    return Adverse(np.where(is_larger, grown, 0.0), np.where(is_larger, z, 0.0), onset)


def _has_work(view: ModelView, rows: Rows) -> np.ndarray:
    """Engines with hardly idle time: others make no request wait, however large their share."""
    is_busy = busy_ratio(view, rows) >= _BUSY_BY_SHARE
    return np.asarray(is_busy | (view.recent("waiting", rows) >= _QUEUED_BY_SHARE))
