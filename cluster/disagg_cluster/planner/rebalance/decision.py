"""Whether an engine should change its role now, and in which direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.move_gain import MoveCost, MoveGain, gain_of
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.regret import regret_of, why_not_again
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

_SHORT_RATIO = 0.7
"""A pool that uses less of its capacity is not short, whatever is foreseen of it."""
_FULL_RATIO = 0.9
_DOUBTED_FACTOR = 1.5
"""A pool that is not full, and for whose load so many times the engines would be needed that it
fills, has another capacity than was learned."""
_MOST_MOVES = 8
"""Further ahead than so many moves, one after the other, nobody looks."""


@dataclass(frozen=True, slots=True)
class Move:
    """One engine of `role` becomes one of `to_role`: the first of the moves of `gain`.

    `undoes`: by what is measured, not by what is foreseen, it takes the last move back.
    """

    role: Role
    to_role: Role
    gain: MoveGain
    undoes: bool = False


@dataclass(frozen=True, slots=True)
class Stay:
    """No move, and why."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class WeighedPools:
    """The two pools of one model: engines, needs to come, and how full they are.

    `capacity_used` is measured, 1 where a pool serves all that it can within its targets; a role
    of which it is not known has none.
    """

    split: RoleSplit
    needs: SplitNeeds
    cost: MoveCost
    capacity_used: Mapping[Role, float] = field(default_factory=dict)


def decide(
    pair: WeighedPools,
    limits: RebalanceLimits,
    short_weight: float,
    log: MoveLog,
    now_seconds: float,
) -> Move | Stay:
    """Move the engine that the best split asks for first, if that pays.

    Of all splits that moves one after the other can reach, the one that misses the fewest
    engine-seconds is best, where each that is missed counts `short_weight` times one that a move
    takes. What it saves must be `gain_ratio` times what the moves take. Nothing is taken from a
    pool that is, as measured, too full to give. A move that left the pool that gave short, as
    measured, and the other with room is taken back first.

    Args:
        pair: The pools as they are.
        limits: What moves stay within.
        short_weight: As in a plan: what an engine that is missed costs over one that idles.
        log: Earlier moves.
        now_seconds: Unix time.
    """
    if reason := log.why_not(limits, now_seconds):
        return Stay(reason)
    needs = pair.needs.within(limits.horizon_seconds)
    back = regret_of(pair.split, needs, pair.capacity_used, log, now_seconds)
    if back is not None and pair.split.of(back.role) > limits.least_engines:
        step = 1 if back.to_role is Role.DECODE else -1
        gain = gain_of(needs, pair.split, step, pair.cost, limits.horizon_seconds)
        return Move(back.role, back.to_role, gain, undoes=True)
    best: tuple[float, Move] | None = None
    bounded = full = ""
    for giver, taker, step in (
        (Role.PREFILL, Role.DECODE, 1),
        (Role.DECODE, Role.PREFILL, -1),
    ):
        spare = pair.split.of(giver) - limits.least_engines
        for moves in range(1, _MOST_MOVES + 1):
            found = gain_of(needs, pair.split, step * moves, pair.cost, limits.horizon_seconds)
            saved = short_weight * found.engine_seconds
            if saved <= limits.gain_ratio * found.downtime_seconds:
                continue
            if moves > spare:
                bounded = bounded or _bounded(giver, limits)
                break
            if told := (
                _too_full(pair, giver, taker)
                or why_not_again(taker, pair.capacity_used, log, now_seconds)
                or _has_room(pair, needs, taker)
            ):
                full = told
                break
            worth = saved - found.downtime_seconds
            if best is None or worth > best[0]:
                best = worth, Move(giver, taker, found)
    if best is not None:
        return best[1]
    return Stay(full or bounded or "no move pays")


def _bounded(giver: Role, limits: RebalanceLimits) -> str:
    return f"{giver} keeps at least {limits.least_engines}: a move would pay and may not be"


def _too_full(pair: WeighedPools, giver: Role, taker: Role) -> str:
    """Why a pool may not give, by what is measured; empty where it may, or is not measured.

    Without one of its engines it would be beyond its targets, and fuller than the other is now.
    """
    used = pair.capacity_used.get(giver)
    engines = pair.split.of(giver)
    if used is None or engines < 2:
        return ""
    after = used * engines / (engines - 1)
    if after <= max(1.0, pair.capacity_used.get(taker, 1.0)):
        return ""
    return f"{giver} is too full to give: it would use {after:.0%} of its capacity"


def _has_room(pair: WeighedPools, needs: SplitNeeds, taker: Role) -> str:
    """Why a pool need not take, by what is measured; empty where it may be short, or is unknown.

    Of capacities only their change is believed here: a pool that is as full as it is measured now
    is by so much fuller as more engines are foreseen to be needed than for the load of now.
    """
    used = pair.capacity_used.get(taker)
    if used is None:
        return ""
    by_block = needs.of(taker).mean(axis=0)
    now, most = float(by_block[0]), float(by_block.max())
    filled = used * pair.split.of(taker)
    # Needs are whole engines with room for chance; beyond that capacities are not as learned.
    if used < _FULL_RATIO and now - 1 > _DOUBTED_FACTOR * filled:
        return (
            f"by its capacity {taker} needs {now:.1f} engines now, as measured it fills "
            f"{filled:.1f}: nothing moves by a capacity that is in doubt"
        )
    at_most = used * most / max(now, 1.0)
    if at_most >= _SHORT_RATIO:
        return ""
    return f"{taker} has room: as measured it would use {at_most:.0%} of its capacity at most"
