"""Whether a whole pool of engines is overloaded."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats

_BUSY = 0.93
_LEAST_WAITING = 1.0
_HAS_TIME = 0.75
# At most this share of the live engines may have room.
_MOST_IDLE = 0.25
# A busy pool has queues that come and go within the target, so waits must reach it; where the load
# has grown, half of it is enough.
_LEAST_OF_TARGET, _LEAST_GROWN = 1.0, 0.5


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


def is_starting(view: ModelView, row: int) -> bool:
    """Whether an engine was still starting in the last blocks."""
    starting = view.recent("starting_seconds", np.array([row]))[0]
    return bool(np.nan_to_num(starting) > 0)
