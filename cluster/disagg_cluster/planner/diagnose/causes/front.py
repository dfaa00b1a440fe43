"""Causes before the engines: what users wait for that no engine sees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion
from disagg_cluster.planner.diagnose.causes.waits import least_cost_seconds
from disagg_cluster.planner.diagnose.evidence.known import known_median
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE, shift_of
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

_Z = 4.0
# A floor is the same whatever comes; a queue in the router is not.
_STEADY = 0.15


def router_waits(view: ModelView) -> Floats | None:
    """Mean seconds, by block, between a request's arrival at the door and the engines' own waits.

    None where nobody sees requests from the door on.
    """
    told = view.front_waits()
    if told is None:
        return None
    seconds, count = told
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = seconds / count
    inside = np.zeros_like(whole)
    for rows in (view.entries, view.decoders):
        if len(rows):
            waited = np.nansum(view.blocks("first_token_seconds", rows), axis=0)
            ended = np.nansum(view.blocks("first_tokens", rows), axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                inside = inside + waited / ended
    found = whole - inside
    return np.where(np.isfinite(found), found, np.nan)


def front_suspicions(view: ModelView) -> Iterator[Suspicion]:
    """What makes users wait before an engine has their request, or between two engines."""
    router = router_waits(view)
    if router is None or not np.isfinite(router[-2:]).any():
        return
    floor_seconds = least_cost_seconds(view, float(known_median(router)))
    shift = shift_of(np.log(np.maximum(router, 0.002))[None])
    stands = shift.z[0] >= _Z and shift.change[0] > np.log(1.3)
    since = int(shift.onset[0]) if stands else 0
    known = router[since:][np.isfinite(router[since:])]
    now = float(np.mean(known[-4:]))
    usual = float(np.exp(shift.before[0])) if stands else 0.0
    is_old = not stands and len(known) >= LEAST_BEFORE
    cost = now - usual
    if cost < floor_seconds or not (stands or is_old):
        return
    spread = float(1.4826 * np.median(np.abs(known - np.median(known)))) / max(now, 1e-9)
    rising = float(known[-1] - known[0]) / max(now, 1e-9) if len(known) > 1 else 0.0
    is_floor = spread <= _STEADY and abs(rising) <= 2 * _STEADY
    role = Role.MIXED if not len(view.decoders) else Role.PREFILL
    whole = np.zeros(len(view.engines))
    whole[view.entries] = cost
    if is_floor:
        text = f"{now:.2f} s pass before an engine has a request, whatever the load"
        cause = Cause.LATENCY_FLOOR
    else:
        text = f"requests wait {now:.2f} s at the router while engines have room"
        cause = Cause.ROUTER_LIMIT
    yield Suspicion(
        cause,
        role,
        view.entries,
        True,
        whole,
        max(float(shift.z[0]), 5.0),
        since,
        (Evidence("router_seconds", now, usual, "s", text),),
        ActionAdvice(RemedyKind.NONE),
    )
