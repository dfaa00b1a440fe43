"""What moves bring over some time, and what they cost: seconds over target and of engines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds


@dataclass(frozen=True, slots=True)
class MoveCost:
    """The engine of one move serves nobody for `downtime_seconds`.

    `measured`: as moves of the cluster were seen to take; else as the planner file assumes.
    """

    downtime_seconds: float
    measured: bool = False


@dataclass(frozen=True, slots=True)
class MoveGain:
    """What `moves` one after the other, to the split `to`, bring against staying.

    `engine_seconds` are those by which pools are less short, `over_target_seconds` those with too
    few engines of some role that there would be less: means over the futures, with what engines
    lack while they are moved taken off, so that either may be below 0.
    """

    moves: int
    to: RoleSplit
    engine_seconds: float
    over_target_seconds: float
    downtime_seconds: float


def gain_of(
    needs: SplitNeeds, present: RoleSplit, to_decode: int, cost: MoveCost, horizon_seconds: float
) -> MoveGain:
    """Weigh so many moves towards decode (below 0: towards prefill) against staying.

    They follow each other at once; an engine that is moved is in neither pool.
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
    """Of each block, those between two times."""
    starts = np.arange(needs.blocks) * needs.block_seconds
    found: Floats = np.clip(
        np.minimum(starts + needs.block_seconds, end) - np.maximum(starts, begin), 0.0, None
    )
    return found
