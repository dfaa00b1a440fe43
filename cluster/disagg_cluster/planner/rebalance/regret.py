"""Moves that later measurements contradict: reverted once, and not repeated soon.

A wrong capacity estimate stays wrong: without this, an engine that was moved in vain would stay,
and more would follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.weighed_pools import FULL_RATIO, WeighedPools
from disagg_exporter.model import Role

_BEYOND = 1.0
_ROOM = 0.5
"""Engines above the needs that count as room; needs are rounded up and include a margin."""
_WINDOW_SECONDS = 300.0
"""Window of measured use; sooner after a move, made or not, it still includes time before that."""
_OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}
LOOK_BACK_SECONDS = HOUR_SECONDS
"""Later measurements reflect another load and no longer count against a move."""


@dataclass(frozen=True, slots=True)
class Regret:
    """An engine of `role` should go back to `to_role`."""

    role: Role
    to_role: Role


def regret_of(pair: WeighedPools, log: MoveLog, now_seconds: float) -> Regret | None:
    """The last move, reversed; None if no measurement contradicts it.

    It is regretted if the giver exceeds its targets although its capacity estimate says it has
    room, and the taker would not be full without the engine. A giver known to be short is no error:
    the decision took that into account.
    """
    last, tried_seconds = log.last, log.tried_seconds
    if last is None or tried_seconds is None or last.undid:
        return None
    if not 0 <= now_seconds - last.ended_seconds <= LOOK_BACK_SECONDS:
        return None
    if 0 <= now_seconds - tried_seconds < _WINDOW_SECONDS:
        return None
    to_role = last.to_role
    gave = _OTHER[to_role]
    if pair.needed_now(gave) > pair.split.of(gave) - _ROOM:
        return None
    without = pair.without_one(to_role)
    if without is None or without > FULL_RATIO or pair.capacity_used.get(gave, 0.0) < _BEYOND:
        return None
    return Regret(to_role, gave)


def why_not_again(taker: Role, pair: WeighedPools, log: MoveLog, now_seconds: float) -> str:
    """Why a pool that had to give back an engine gets none; empty once it is measured full."""
    since = log.regretted.get(taker)
    if since is None or not 0 <= now_seconds - since <= LOOK_BACK_SECONDS or pair.is_full(taker):
        return ""
    return f"{taker} gave back an engine {(now_seconds - since) / 60:.0f} min ago and is not full"
