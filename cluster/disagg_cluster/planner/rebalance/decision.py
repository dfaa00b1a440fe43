"""Whether an engine should change its role now, and in which direction."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.move_gain import MoveGain, gain_of
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.regret import regret_of, why_not_again
from disagg_cluster.planner.rebalance.weighed_pools import SHORT_RATIO, WeighedPools
from disagg_exporter.model import Role

_TOLERANCE = 1.1
"""Means of five minutes differ by so much by chance; Kubernetes' HPA tolerates as much."""
_IDLE_RATIO, _IDLE_OF_TAKER = 0.5, 0.5
"""A giver that would use at most this much of its capacity after the move, and at most this part of
what the taker uses now, does not miss the engine."""
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
    pool that is, as measured, too full to give. A move that what is measured speaks against is
    taken back first.

    Args:
        pair: The pools as they are.
        limits: What moves stay within.
        short_weight: As in a plan: what an engine that is missed costs over one that idles.
        log: Earlier moves.
        now_seconds: Unix time.
    """
    if reason := log.why_not(limits, now_seconds):
        return Stay(reason)
    pair = pair.within(limits.horizon_seconds)
    back = regret_of(pair, log, now_seconds)
    if back is not None and pair.split.of(back.role) > limits.least_engines:
        step = 1 if back.to_role is Role.DECODE else -1
        gain = gain_of(pair.needs, pair.split, step, pair.cost, limits.horizon_seconds)
        return Move(back.role, back.to_role, gain, undoes=True)
    best: tuple[float, Move] | None = None
    bounded = full = ""
    for giver, taker, step in (
        (Role.PREFILL, Role.DECODE, 1),
        (Role.DECODE, Role.PREFILL, -1),
    ):
        spare = pair.split.of(giver) - limits.least_engines
        for moves in range(1, _MOST_MOVES + 1):
            found = gain_of(pair.needs, pair.split, step * moves, pair.cost, limits.horizon_seconds)
            saved = short_weight * found.engine_seconds
            if saved <= limits.gain_ratio * found.downtime_seconds:
                continue
            if moves > spare:
                bounded = bounded or _bounded(giver, limits)
                break
            if told := (
                why_not_again(taker, pair, log, now_seconds)
                or _has_room(pair, taker, giver)
                or _too_full(pair, giver, taker)
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


def _has_room(pair: WeighedPools, taker: Role, giver: Role) -> str:
    """Why a pool need not take, by what is measured; empty where it may be short, or is unknown.

    A pool that is as full as it is measured now is by so much fuller as more engines are foreseen
    to be needed than for the load of now.
    """
    at_most, filled = pair.used_at_most(taker), pair.filled(taker)
    if at_most is None or filled is None:
        return ""
    if pair.is_doubted(taker):
        return (
            f"by its capacity {taker} needs {pair.needed_now(taker):.1f} engines now, as measured "
            f"it fills {filled:.1f}: nothing moves by a capacity that is in doubt"
        )
    if at_most >= SHORT_RATIO or _is_idle_beside(pair, giver, taker):
        return ""
    return f"{taker} has room: as measured it would use {at_most:.0%} of its capacity at most"


def _is_idle_beside(pair: WeighedPools, giver: Role, taker: Role) -> bool:
    """Whether the giver would, as measured, still be far less full than the taker is now.

    Then rare bursts are reason enough to move, though the taker has room between them: if the
    futures are wrong, the move costs its downtime and nothing else.
    """
    after, used = pair.without_one(giver), pair.capacity_used.get(taker)
    if after is None or used is None:
        return False
    return after <= min(_IDLE_RATIO, _IDLE_OF_TAKER * used)


def _too_full(pair: WeighedPools, giver: Role, taker: Role) -> str:
    """Why a pool may not give, by what is measured; empty where it may, or is not measured.

    With an engine less it must not be beyond its targets, but where the other is fuller still. And
    while the other is not full, it must be clearly less full than that one is foreseen to be: else
    the move would only make the other pool the short one.
    """
    after, foreseen = pair.without_one(giver), pair.used_at_most(taker)
    if after is None:
        return ""
    told = f"{giver} is too full to give: it would use {after:.0%} of its capacity"
    if foreseen is None or pair.is_full(taker):
        return told if after > max(1.0, pair.capacity_used.get(taker, 1.0)) else ""
    if after > 1.0 or after * _TOLERANCE > foreseen:
        return f"{told}, and {taker} as it is {foreseen:.0%} at most"
    return ""
