"""Limits of an engine's steps that hold it back: steps too small, or too large."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.overload import busy_ratio
from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind

_LEAST_WAITING = 1.0
_BUSY = 0.7
# A batch that is full while requests wait is held back by its limit, if smaller than it was, than
# at peers, or than the knee by this factor.
_SMALLER = 1.5
_Z = 4.0
_ROOM_IN_CACHE = 0.9


def batch_limits(view: ModelView, waits: Waits) -> tuple[Suspicion, ...]:
    """Engines whose steps are too small for those who wait."""
    return tuple(_underfilled(view, waits))


def _underfilled(view: ModelView, waits: Waits) -> Iterator[Suspicion]:
    rows = waits.rows
    waiting = np.nan_to_num(view.recent("waiting", rows))
    room = np.nan_to_num(view.recent("kv_usage", rows)) < _ROOM_IN_CACHE
    standing = (waiting >= _LEAST_WAITING) & room
    changed = view.changed("step_tokens", rows)
    shift = changed.shift
    smaller = (shift.z <= -_Z) & (shift.change <= -np.log(_SMALLER))
    apart = (changed.apart_z <= -_Z) & (changed.apart <= -np.log(_SMALLER))
    tokens = np.exp(shift.after)
    limit, knee = view.latest("step_limit_tokens", rows), view.latest("knee_tokens", rows)
    with np.errstate(invalid="ignore"):
        below = (limit * _SMALLER < knee) & (tokens > 0.5 * limit)
    batch = view.latest("batch_limit", rows)
    running = np.nan_to_num(view.recent("running", rows))
    with np.errstate(invalid="ignore"):
        seats = (running >= 0.9 * batch) & (busy_ratio(view, rows) < _BUSY + 0.3) & (batch < 64)
    short = standing & (smaller | apart | below | seats) & (waits.excess > 0)
    if not short.any():
        return
    numbers = np.flatnonzero(short)
    cost = np.zeros(len(view.engines))
    cost[rows[numbers]] = waits.excess[numbers]
    first = numbers[0]
    by_seats = bool(seats[first] and not (smaller | apart | below)[first])
    best = _best_tokens(shift.before[first], knee[first])
    text = (
        f"steps have {tokens[first]:.0f} tokens while {waiting[first]:.0f} requests wait and the "
        f"cache has room"
    )
    yield Suspicion(
        Cause.UNDERFILLED,
        view.engines[rows[first]].role,
        rows[numbers],
        len(rows) > 1 and len(numbers) == len(rows),
        cost,
        float(max(np.abs(shift.z[numbers]).max(), np.abs(changed.apart_z[numbers]).max(), 5.0)),
        int(shift.onset[numbers].min()),
        (Evidence("step_tokens", float(tokens[first]), best, "tokens", text),),
        ActionAdvice(
            RemedyKind.SET_SEQS if by_seats else RemedyKind.SET_BATCHED_TOKENS,
            None if by_seats or best is None else round(best),
        ),
    )


def _best_tokens(before: float, knee: float) -> float | None:
    """Tokens of a step that would do: at the knee, or as they were."""
    known: Floats = np.array([np.exp(before), knee])
    known = known[np.isfinite(known)]
    return float(known.max()) if len(known) else None
