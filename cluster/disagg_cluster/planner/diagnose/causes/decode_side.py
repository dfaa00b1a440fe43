"""Causes at decode engines, between the end of prefill and the user's first token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.kv_room import FULL
from disagg_cluster.planner.diagnose.causes.kv_transfers import transfer_suspicion
from disagg_cluster.planner.diagnose.causes.slow_steps import slow_suspicions
from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion, adverse
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_AFTER, LEAST_BEFORE
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

_LEAST_WAITING = 1.0
_FEW_SLOTS, _OF_FEW, _OF_MANY, _FILLED = 8, 0.6, 0.9, 0.97
# Room is reserved for outputs if fewer than half of the engines where requests wait are full.
_MOST_WITH_ROOM = 0.5
# If requests wait for reserved room at more than this part of a pool, all of it reserves.
_MOST_RESERVING = 0.5
# Waits at an engine are about as long as at others if they are this part of theirs.
_AS_LONG = 0.5
# So many times the usual requests are a burst, if it is beyond chance by so many standard errors
# (Poisson), and unless it has lasted so many blocks.
_BURST, _BURST_Z, _BURST_BLOCKS = 1.25, 2.0, 4


def decode_suspicions(view: ModelView, waits: Waits, before: Waits) -> Iterator[Suspicion]:
    """Causes of long waits at decode engines.

    Args:
        view: The model.
        waits: At decode engines.
        before: At prefill engines, whose cache fills while KV is not fetched.
    """
    rows = waits.rows
    if not len(rows):
        return
    excess = waits.excess
    transfers = transfer_suspicion(view, waits, before)
    moving = np.zeros(len(rows), dtype=np.bool_)
    if transfers is not None:
        yield transfers.suspicion
        moving = transfers.moving
    waiting = np.nan_to_num(view.recent("waiting", rows))
    preallocating = np.nan_to_num(view.recent("preallocating", rows))
    piled = (view.blocks("waiting", rows)[:, -2:] >= _LEAST_WAITING).all(axis=1)
    short = (piled | (preallocating >= _LEAST_WAITING)) & (excess > 0) & ~moving
    # A lowered limit explains the queue, even during a burst.
    limited = view.limit_onset(rows) < view.blocks("waiting", rows).shape[1]
    if short.any():
        # So are engines where requests wait about as long, though their queues come and go.
        queued = np.nan_to_num(view.blocks("waiting", rows)[:, -_BURST_BLOCKS:]).max(axis=1)
        as_long = excess >= _AS_LONG * float(np.median(excess[short]))
        short |= as_long & (queued >= _LEAST_WAITING) & ~moving
    if short.any() and (limited[short].all() or not _is_surging(view, rows)):
        yield _no_room(view, waits, before, short, waiting + preallocating)
    if not (excess > 0).any():
        return
    slow = adverse(
        view.changed("slowness", rows), float(np.log(1.15)), least_apart=float(np.log(1.3))
    )
    affected = np.flatnonzero((slow.size > 0) & (excess > 0) & ~moving & ~short)
    yield from slow_suspicions(view, rows, slow, affected, excess)


def _is_surging(view: ModelView, rows: Rows) -> bool:
    """Whether arrivals are in a short burst, which passes."""
    arrived = np.nansum(view.blocks("arrivals", rows), axis=0)
    if len(arrived) < LEAST_BEFORE + LEAST_AFTER:
        return False
    usual = float(np.median(arrived[: max(len(arrived) - _BURST_BLOCKS, LEAST_BEFORE)]))
    by_chance = _BURST_Z * np.sqrt(usual / LEAST_AFTER)
    return bool(
        arrived[-LEAST_AFTER:].mean() > max(_BURST * usual, usual + by_chance)
        and arrived[-_BURST_BLOCKS:].min() <= _BURST * usual
    )


def _is_taken(view: ModelView, rows: Rows, usage: Floats, running: Floats) -> np.ndarray:
    """Which engines have no batch slot, or no room in their cache for one more typical request."""
    batch = view.latest("batch_limit", rows)
    with np.errstate(invalid="ignore"):
        # With few slots one is often free between two requests.
        occupied = running >= np.where(batch <= _FEW_SLOTS, _OF_FEW, _OF_MANY) * batch
    one_more = usage * (1 + 1 / np.maximum(running, 1.0))
    return np.asarray(occupied | (usage >= FULL) | (one_more >= _FILLED))


def _no_room(
    view: ModelView, waits: Waits, before: Waits, short: np.ndarray, waiting: Floats
) -> Suspicion:
    """Requests waiting for room at decode engines that are full or reserve room for outputs."""
    rows = waits.rows
    # Engines with a changed limit have as little room, though their queues come and go.
    limited = view.limit_onset(rows) < view.blocks("waiting", rows).shape[1]
    if limited[short].all():
        short = short | limited
    numbers = np.flatnonzero(short)
    usage = np.nan_to_num(view.recent("kv_usage", rows))
    running = np.nan_to_num(view.recent("running", rows))
    preempted = np.nan_to_num(view.recent("preemptions", rows)) > 0
    worst = numbers[np.argmax(waiting[numbers])]
    taken = _is_taken(view, rows, usage, running) | preempted
    is_reserved = bool(taken[numbers].mean() < _MOST_WITH_ROOM)
    if is_reserved and len(numbers) > _MOST_RESERVING * len(rows):
        # The others reserve as much, though their queues come and go.
        numbers = np.arange(len(rows))
    is_all = len(rows) > 1 and len(numbers) == len(rows)
    if is_reserved:
        cause = Cause.PREALLOCATION
        text = (
            f"{waiting[worst]:.0f} requests wait to be let in while its KV cache is only "
            f"{usage[worst]:.0%} in use: room is kept for outputs"
        )
    elif preempted[worst] and not is_all and len(rows) > 1:
        cause = Cause.KV_FULL
        text = f"its KV cache is {usage[worst]:.0%} full and requests are preempted"
    else:
        cause = Cause.DECODE_BACK_PRESSURE
        text = (
            f"{waiting[worst]:.0f} requests wait for a place there: {running[worst]:.0f} run, and "
            f"its KV cache is {usage[worst]:.0%} full"
        )
    cost = np.zeros(len(view.engines))
    cost[rows] = np.where(short, waits.excess, 0.0)
    if len(before.rows):
        # KV that decode does not fetch stays at prefill engines, where requests wait for room.
        held = np.nan_to_num(view.recent("kv_usage", before.rows)) >= FULL
        cost[before.rows] = np.where(held, before.excess, 0.0)
    return Suspicion(
        cause,
        Role.DECODE,
        rows[numbers],
        is_all,
        cost,
        max(float(waits.z[numbers].max()), 5.0),
        int(waits.onset[numbers].min()),
        (Evidence("waiting", float(waiting[worst]), 0.0, "requests", text),),
        ActionAdvice(RemedyKind.SET_SEQS if is_reserved else RemedyKind.MOVE_WORKER),
    )
