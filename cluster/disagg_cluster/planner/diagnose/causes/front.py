"""Causes before the engines: what users wait for that no engine sees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion
from disagg_cluster.planner.diagnose.causes.waits import least_cost_seconds
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_BEFORE, shift_of
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

_Z = 4.0
# A floor is the same whatever comes, and under every request; a queue in the router is neither.
_STEADY, _RISE = 0.1, 0.1
# A queue that is told explains a wait if it is that of so large a part of it (Little 1961).
_QUEUE_SHARE = 0.4


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
    since, usual, z = _risen(router)
    known = router[since:][np.isfinite(router[since:])]
    if len(known) < 2 or z < _Z:
        return
    now = float(np.mean(known[-4:]))
    cost = now - usual
    if cost < least_cost_seconds(view, usual):
        return
    queue = _queue_seconds(view)
    is_floor = _is_steady(known) and (queue is None or queue < _QUEUE_SHARE * cost)
    whole = np.zeros(len(view.engines))
    whole[view.entries] = cost
    text = (
        f"{now:.2f} s pass before an engine has a request, whatever the load"
        if is_floor
        else f"requests wait {now:.2f} s at the router, which no engine makes them"
    )
    yield Suspicion(
        Cause.LATENCY_FLOOR if is_floor else Cause.ROUTER_LIMIT,
        Role.PREFILL if len(view.decoders) else Role.MIXED,
        view.entries,
        True,
        whole,
        z,
        since,
        (Evidence("router_seconds", now, usual, "s", text),),
        ActionAdvice(RemedyKind.NONE),
    )


def _risen(router: Floats) -> tuple[int, float, float]:
    """Since which block the wait stands, what it was before, and in how many standard errors.

    Seconds, not their logarithms: what is left when two waits are taken from each other may be
    anything around nothing.
    """
    shift = shift_of(router[None])
    if shift.z[0] >= _Z:
        since = int(shift.onset[0])
        return since, max(float(shift.before[0]), 0.0), float(shift.z[0])
    known = router[np.isfinite(router)]
    if len(known) < LEAST_BEFORE:
        return 0, 0.0, 0.0
    # Nothing of it was ever away: it stands by itself, or not at all.
    error = float(np.std(known)) / np.sqrt(len(known)) + 0.01 * abs(float(np.mean(known)))
    return 0, 0.0, float(np.median(known)) / max(error, 1e-6)


def _is_steady(known: Floats) -> bool:
    """Whether a wait is the same in each block; the first may hold some time before it."""
    settled = known[1:] if len(known) > 2 else known
    mean = float(np.mean(settled))
    stray = float(np.median(np.abs(settled - np.median(settled))))
    third = max(len(settled) // 3, 1)
    # A queue grows; what two waits taken from each other leave may also fall a little.
    rise = float(np.mean(settled[-third:]) - np.mean(settled[:third]))
    return bool(stray <= _STEADY * mean and -2 * _RISE * mean <= rise <= _RISE * mean)


def _queue_seconds(view: ModelView) -> float | None:
    """How long requests wait in the router by what it tells of its queue; None if it does not."""
    users = view.changes.fleet.users.get(view.place)
    waiting = None if users is None else users.of("front_waiting")
    arrivals = view.recent("arrivals", view.entries)
    rate = float(np.nansum(arrivals)) / view.block_seconds
    if waiting is None or not np.isfinite(waiting[-4:]).any() or rate <= 0:
        return None
    return float(np.nanmean(waiting[-4:])) / rate
