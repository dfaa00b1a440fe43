"""Gain and cost of moves over a horizon, in seconds over target and engine-seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds


@dataclass(frozen=True, slots=True)
class MoveCost:
    """Cost of one move: its engine serves no requests for `downtime_seconds`.

    `measured`: from earlier moves of the cluster; otherwise assumed from the planner file.
    """

    downtime_seconds: float
    measured: bool = False


@dataclass(frozen=True, slots=True)
class MoveGain:
    """Gain of `moves` consecutive moves to the split `to`, relative to staying.

    `engine_seconds` is the reduction of the shortage of engines, `over_target_seconds` the
    reduction of the time with too few engines of some role. Both are means over the futures and
    include the moves' downtime, so either may be negative.
    """

    moves: int
    to: RoleSplit
    engine_seconds: float
    over_target_seconds: float
    downtime_seconds: float


def gain_of(
    needs: SplitNeeds, present: RoleSplit, to_decode: int, cost: MoveCost, horizon_seconds: float
) -> MoveGain:
    """Gain of `to_decode` moves towards decode (negative: towards prefill) relative to staying.

    Moves follow each other immediately; an engine that moves is in neither pool.
    """
    step = 1 if to_decode > 0 else -1
    begins = 0.0
    engine_seconds = over_target_seconds = 0.0
    stages = [
        (present.moved(step * done).without(step), cost.downtime_seconds)
        for done in range(abs(to_decode))
    ]
    for split, lasts in (*stages, (present.moved(to_decode), np.inf)):
        seconds = _seconds(needs, begins, min(begins + lasts, horizon_seconds))
        if seconds.any():
            less = needs.missed(present) - needs.missed(split)
            engine_seconds += float(seconds @ less)
            rarer = needs.over_target(present) - needs.over_target(split)
            over_target_seconds += float(seconds @ rarer)
        begins += lasts
    return MoveGain(
        moves=abs(to_decode),
        to=present.moved(to_decode),
        engine_seconds=engine_seconds,
        over_target_seconds=over_target_seconds,
        downtime_seconds=abs(to_decode) * cost.downtime_seconds,
    )


def _seconds(needs: SplitNeeds, begin: float, end: float) -> Floats:
    """Seconds of each block that lie between two times."""
    starts = np.arange(needs.blocks) * needs.block_seconds
    found: Floats = np.clip(
        np.minimum(starts + needs.block_seconds, end) - np.maximum(starts, begin), 0.0, None
    )
    return found
