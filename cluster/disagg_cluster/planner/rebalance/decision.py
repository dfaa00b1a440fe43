"""Decides whether an engine should change its role now, and in which direction."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.move_gain import MoveGain, gain_of
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.regret import regret_of, why_not_again
from disagg_cluster.planner.rebalance.weighed_pools import SHORT_RATIO, WeighedPools
from disagg_exporter.model import Role

_TOLERANCE = 1.1
"""Noise of five-minute means; the same tolerance as Kubernetes' HPA."""
_IDLE_RATIO, _IDLE_OF_TAKER = 0.5, 0.5
"""A giver is idle if it would use at most this share of its capacity after the move, and at most
this share of what the taker uses now."""
_MOST_MOVES = 8
"""Most consecutive moves that a decision considers."""


@dataclass(frozen=True, slots=True)
class Move:
    """One engine of `role` changes to `to_role`, as the first of the moves of `gain`.

    `undoes`: it reverts the last move, because of measurements and not of the forecast.
    """

    role: Role
    to_role: Role
    gain: MoveGain
    undoes: bool = False


@dataclass(frozen=True, slots=True)
class Stay:
    """Why no engine should move."""

    reason: str


def decide(
    pair: WeighedPools,
    limits: RebalanceLimits,
    short_weight: float,
    log: MoveLog,
    now_seconds: float,
) -> Move | Stay:
    """Make the first move towards the best split, if that pays.

    The best split, of all that consecutive moves can reach, saves the most: each engine-second of
    shortage avoided counts `short_weight` times an engine-second of downtime. The saving must
    exceed `gain_ratio` times the downtime. Pools that are too full as measured give no engine. A
    move that measurements contradict is reverted first.

    Args:
        pair: The present pools.
        limits: Limits of moves.
        short_weight: As in a plan: cost of a missing engine relative to an idle one.
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
    bounded = refused = ""
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
            if why := (
                why_not_again(taker, pair, log, now_seconds)
                or _has_room(pair, taker, giver)
                or _too_full(pair, giver, taker)
            ):
                refused = why
                break
            worth = saved - found.downtime_seconds
            if best is None or worth > best[0]:
                best = worth, Move(giver, taker, found)
    if best is not None:
        return best[1]
    return Stay(refused or bounded or "no move pays")


def _bounded(giver: Role, limits: RebalanceLimits) -> str:
    return f"{giver} keeps at least {limits.least_engines}: a move would pay but is not allowed"


def _has_room(pair: WeighedPools, taker: Role, giver: Role) -> str:
    """Why a pool needs no engine, by measurement; empty if it may be short or is not measured.

    Also empty if the giver is idle beside it. The measured use of a pool is extrapolated by the
    forecast growth of its needs.
    """
    at_most, filled = pair.used_at_most(taker), pair.filled(taker)
    if at_most is None or filled is None:
        return ""
    if pair.is_doubted(taker):
        return (
            f"by its capacity {taker} needs {pair.needed_now(taker):.1f} engines now, but as "
            f"measured it fills {filled:.1f}: nothing moves while a capacity is in doubt"
        )
    if at_most >= SHORT_RATIO or _is_idle_beside(pair, giver, taker):
        return ""
    return f"{taker} has room: as measured it would use {at_most:.0%} of its capacity at most"


def _is_idle_beside(pair: WeighedPools, giver: Role, taker: Role) -> bool:
    """Whether the giver, as measured, would remain far less full than the taker is now.

    Then rare bursts justify a move even if the taker has room between them: if the futures are
    wrong, the move costs only its downtime. A taker that is not used at all gives no such reason.
    """
    after, used = pair.without_one(giver), pair.capacity_used.get(taker)
    if after is None or not used:
        return False
    return after <= min(_IDLE_RATIO, _IDLE_OF_TAKER * used)


def _too_full(pair: WeighedPools, giver: Role, taker: Role) -> str:
    """Why a pool may not give an engine, by measurement; empty if it may or is not measured.

    With one engine less it must stay within its targets, unless the taker is full and fuller still.
    While the taker is not full, the giver must remain clearly less full than the taker is forecast
    to be: otherwise the move would only make the giver the short pool.
    """
    after, foreseen = pair.without_one(giver), pair.used_at_most(taker)
    if after is None:
        return ""
    why = f"{giver} is too full to give: it would use {after:.0%} of its capacity"
    if foreseen is None or pair.is_full(taker):
        return why if after > max(1.0, pair.capacity_used.get(taker, 1.0)) else ""
    if after > 1.0 or after * _TOLERANCE > foreseen:
        return f"{why}, and {taker} without the move {foreseen:.0%} at most"
    return ""
