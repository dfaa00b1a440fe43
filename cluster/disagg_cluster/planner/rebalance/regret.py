"""Moves that what is measured afterwards speaks against: taken back once, and not made again soon.

Whatever a capacity got wrong, it gets wrong again: without this an engine that was given for
nothing would stay, and be followed by the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.weighed_pools import FULL_RATIO, WeighedPools
from disagg_exporter.model import Role

_BEYOND = 1.0
_ROOM = 0.5
"""Needs are whole engines, with room for chance: by so many fewer they are clearly fewer."""
_WINDOW_SECONDS = 300.0
"""Over so long it is measured how full pools are: of less than that some is of before the move."""
_OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}
LOOK_BACK_SECONDS = HOUR_SECONDS
"""What speaks against a move later than so long after it is another load."""


@dataclass(frozen=True, slots=True)
class Regret:
    """An engine of `role` goes back to `to_role`."""

    role: Role
    to_role: Role


def regret_of(pair: WeighedPools, log: MoveLog, now_seconds: float) -> Regret | None:
    """The last move, turned round; None where nothing that is measured speaks against it.

    It is regretted where the pool that gave is beyond its targets though by its capacity it should
    have room, and the one that was given to would not be full without the engine. A pool that is
    known to be short was weighed, and is no error.
    """
    ended, to_role = log.ended_seconds, log.last_to
    if ended is None or to_role is None or log.last_undid:
        return None
    if not _WINDOW_SECONDS <= now_seconds - ended <= LOOK_BACK_SECONDS:
        return None
    gave = _OTHER[to_role]
    if pair.needed_now(gave) > pair.split.of(gave) - _ROOM:
        return None
    without = pair.without_one(to_role)
    if without is None or without > FULL_RATIO or pair.capacity_used.get(gave, 0.0) < _BEYOND:
        return None
    return Regret(to_role, gave)


def why_not_again(taker: Role, pair: WeighedPools, log: MoveLog, now_seconds: float) -> str:
    """Why a pool is given nothing after it had to give back; empty once it is full as measured."""
    since = log.regretted.get(taker)
    if since is None or now_seconds - since > LOOK_BACK_SECONDS or pair.is_full(taker):
        return ""
    return f"{taker} gave back an engine {(now_seconds - since) / 60:.0f} min ago and is not full"
