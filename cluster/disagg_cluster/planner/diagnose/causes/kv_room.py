"""Engines that lack room in their KV cache for the requests that wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

FULL = 0.88
_LEAST_WAITING = 1.0


def kv_full(view: ModelView, waits: Waits) -> tuple[Suspicion, ...]:
    """Engines that compute prompts and whose cache is full, or that throw out what they have."""
    return tuple(_full(view, waits))


def _full(view: ModelView, waits: Waits) -> Iterator[Suspicion]:
    rows = waits.rows
    usage = np.nan_to_num(view.recent("kv_usage", rows))
    waiting = np.nan_to_num(view.recent("waiting", rows))
    preempted = np.nan_to_num(view.recent("preemptions", rows)) > 0
    full = (usage >= FULL) & (waiting >= _LEAST_WAITING)
    short = (full | (preempted & (usage >= 0.7))) & (waits.excess > 0)
    if not short.any():
        return
    numbers = np.flatnonzero(short)
    cost = np.zeros(len(view.engines))
    cost[rows[numbers]] = waits.excess[numbers]
    worst = numbers[np.argmax(usage[numbers])]
    text = f"its KV cache is {usage[worst]:.0%} full while {waiting[worst]:.0f} requests wait"
    if preempted[worst]:
        text += ", and requests lose their place in it"
    role = view.engines[rows[worst]].role
    yield Suspicion(
        Cause.KV_FULL,
        role,
        rows[numbers],
        len(rows) > 1 and len(numbers) == len(rows),
        cost,
        max(float(waits.z[numbers].max()), 5.0),
        int(waits.onset[numbers].min()),
        (Evidence("kv_usage", float(usage[worst]), FULL, "ratio", text),),
        ActionAdvice(RemedyKind.SET_SEQS if role is not Role.PREFILL else RemedyKind.ROUTE_AWAY),
    )
