"""Engines without room in their KV cache for the requests that wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.suspicion import CHANGED_Z, ActionAdvice, Suspicion
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Flags
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

FULL = 0.88
# Preemptions per block; fewer may be of one request that outgrew all others. None happen while
# there is room, whatever the few scrapes show, so a cache that is often full needs fewer.
_OFTEN_FULL, _LEAST_PREEMPTED, _MANY_PREEMPTED = 0.7, 1.0, 4.0
_LEAST_WAITING = 1.0
# A cache has shrunk if it was this many times as large before.
_SMALLER, _HALF_FULL = 1.4, 0.5
_RECENT_BLOCKS = 4
_LIKELY_Z = 5.0


def kv_full(view: ModelView, waits: Waits) -> tuple[Suspicion, ...]:
    """Engines that compute prompts and whose cache is full, or that preempt requests."""
    return tuple(_full(view, waits))


def _full(view: ModelView, waits: Waits) -> Iterator[Suspicion]:
    rows = waits.rows
    usage = np.nan_to_num(view.recent("kv_usage", rows))
    waiting = np.nan_to_num(view.recent("waiting", rows))
    preemptions = np.nan_to_num(view.recent("preemptions", rows))
    preempted = preemptions >= np.where(usage >= _OFTEN_FULL, _LEAST_PREEMPTED, _MANY_PREEMPTED)
    is_smaller = _is_smaller(view, waits)
    full = preempted | ((usage >= FULL) & (waiting >= _LEAST_WAITING))
    filling = is_smaller & (usage >= _HALF_FULL)
    short = (full | filling) & (waits.excess > 0) & ~_stood_before(view, waits)
    if not short.any():
        return
    numbers = np.flatnonzero(short | _held(view, waits, short))
    cost = np.zeros(len(view.engines))
    cost[rows[numbers]] = waits.excess[numbers]
    worst = numbers[np.argmax(usage[numbers])]
    text = f"its KV cache is {usage[worst]:.0%} full while {waiting[worst]:.0f} requests wait"
    if preempted[worst]:
        text += ", and requests are preempted"
    role = view.engines[rows[worst]].role
    is_sure = bool((short & full & is_smaller).any())
    yield Suspicion(
        Cause.KV_FULL,
        role,
        rows[numbers],
        len(rows) > 1 and len(numbers) == len(rows),
        cost,
        max(float(waits.z[numbers].max()), CHANGED_Z if is_sure else _LIKELY_Z),
        int(waits.onset[numbers].min()),
        (Evidence("kv_usage", float(usage[worst]), FULL, "ratio", text),),
        ActionAdvice(RemedyKind.SET_SEQS if role is not Role.PREFILL else RemedyKind.ROUTE_AWAY),
        is_reported=is_sure,
    )


def _stood_before(view: ModelView, waits: Waits) -> Flags:
    """Engines whose requests already waited as long while there was room, so for another reason.

    That reason, such as a burst, then filled the cache.
    """
    levels = view.changed("first_token", waits.rows).levels
    with np.errstate(divide="ignore", invalid="ignore"):
        halfway = (np.log(waits.now) + np.log(waits.usual)) / 2
        is_long = levels >= halfway[:, None]
    # The first block of the present run of long waits; unknown blocks do not end it.
    numbers = np.arange(levels.shape[1])
    calm = np.where(np.isfinite(levels) & ~is_long, numbers, -1)
    first = np.minimum(calm.max(axis=1) + 1, len(numbers) - 1)
    each = np.arange(len(waits.rows))
    usage = view.blocks("kv_usage", waits.rows)[each, first]
    lost = np.nan_to_num(view.blocks("preemptions", waits.rows)).cumsum(axis=1)[each, first]
    is_long_now = first < len(numbers) - 1
    with np.errstate(invalid="ignore"):
        had_room = (usage < _HALF_FULL) & (lost == 0) & ~_is_smaller(view, waits)
    return np.asarray(is_long_now & had_room)


def _is_smaller(view: ModelView, waits: Waits) -> Flags:
    """Which engines' caches have shrunk."""
    now, before = view.latest("kv_tokens", waits.rows), view.first("kv_tokens", waits.rows)
    with np.errstate(invalid="ignore"):
        return np.asarray(_SMALLER * now <= before)


def _held(view: ModelView, waits: Waits, short: Flags) -> Flags:
    """Engines with as little room as the short ones, though their queues come and go."""
    usage = np.nan_to_num(view.blocks("kv_usage", waits.rows)[:, -_RECENT_BLOCKS:]).max(axis=1)
    is_small = _is_smaller(view, waits)
    was_full = (usage >= FULL) & (waits.excess > 0)
    return np.asarray(was_full | (is_small & bool((is_small & short).any())))
