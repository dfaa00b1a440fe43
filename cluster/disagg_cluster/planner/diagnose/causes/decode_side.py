"""Causes between a prompt's end and the user's first token: KV transfers and decode engines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.kv_room import FULL
from disagg_cluster.planner.diagnose.causes.slow_steps import why_slow
from disagg_cluster.planner.diagnose.causes.suspicion import ActionAdvice, Suspicion, adverse
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.known import known_median
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

_LEAST_SLOWER_LINK, _LEAST_APART = float(np.log(1.3)), float(np.log(1.8))
_LEAST_FAILED = 0.02
# Transfers that take this part of the target, over less than a network that KV is meant for has
# (40 Gb/s, in bytes a second), are slow by themselves.
_LONG_OF_TARGET, _LONG_Z, _SLOW_LINK = 0.2, 6.0, 5e9
_LEAST_WAITING = 1.0
_FEW_SEATS, _OF_FEW, _OF_MANY, _FILLED = 8, 0.6, 0.9, 0.97
# Room is kept for outputs if it is not taken at half of the engines where requests wait.
_MOST_WITH_ROOM = 0.5
# So many times as many requests as usual are a burst, unless it has lasted so many blocks.
_BURST, _BURST_BLOCKS = 1.25, 4
# A sender whose KV stays longer by so many times what it does at the others is the slow one.
_HELD_APART, _LEAST_HELD, _LEAST_HELD_SECONDS = 3.0, 0.3, 0.05


def decode_suspicions(view: ModelView, waits: Waits, before: Waits) -> Iterator[Suspicion]:
    """What makes the waits at decode engines too long.

    Args:
        view: The model.
        waits: At decode engines.
        before: At prefill engines, whose cache fills when nobody takes what is in it.
    """
    rows = waits.rows
    if not len(rows):
        return
    excess = waits.excess
    slower = adverse(
        view.changed("transfer", rows),
        _LEAST_SLOWER_LINK,
        least_apart=_LEAST_APART,
        since=waits.onset,
    )
    failed = _failed_share(view, rows)
    moving = ((slower.size > 0) | (failed >= _LEAST_FAILED)) & (excess > 0)
    if not moving.any():
        yield from _long_transfers(view, rows)
    if moving.any():
        yield _transfers(view, waits, before, moving, slower.z, slower.size, failed)
    waiting = np.nan_to_num(view.recent("waiting", rows))
    preallocating = np.nan_to_num(view.recent("preallocating", rows))
    piled = (view.blocks("waiting", rows)[:, -2:] >= _LEAST_WAITING).all(axis=1)
    short = (piled | (preallocating >= _LEAST_WAITING)) & (excess > 0) & ~moving
    if short.any() and not _is_surging(view, rows):
        yield _no_room(view, waits, before, short, waiting + preallocating)
    slow = adverse(
        view.changed("slowness", rows), float(np.log(1.15)), least_apart=float(np.log(1.3))
    )
    for number in np.flatnonzero((slow.size > 0) & (excess > 0) & ~moving & ~short):
        found = why_slow(view, int(rows[number]), int(slow.onset[number]))
        ratio = float(np.exp(slow.size[number]))
        steps = Evidence(
            "slowness", ratio, 1.0, "ratio", f"its steps take {ratio:.2f} times as long as they did"
        )
        cost = np.zeros(len(view.engines))
        cost[rows[number]] = excess[number]
        yield Suspicion(
            found.cause,
            Role.DECODE,
            rows[number : number + 1],
            False,
            cost,
            float(slow.z[number]),
            int(slow.onset[number]),
            (steps, *found.evidence),
            ActionAdvice(RemedyKind.REPLACE_GPU),
        )


def _long_transfers(view: ModelView, rows: Rows) -> Iterator[Suspicion]:
    """Transfers that take a large part of what users were promised, and always have."""
    each = view.recent_over("transfer_seconds", "transfers", rows)
    target = view.targets.ttft_seconds
    a_byte = view.recent_over("transfer_seconds", "transfer_bytes", rows)
    with np.errstate(invalid="ignore"):
        numbers = np.flatnonzero((each >= _LONG_OF_TARGET * target) & (a_byte > 1 / _SLOW_LINK))
    if not np.isfinite(target) or not len(numbers):
        return
    cost = np.zeros(len(view.engines))
    cost[rows[numbers]] = each[numbers]
    longest = float(each[numbers].max())
    text = f"the KV of a prompt takes {longest:.2f} s to arrive, of {target:.2f} s promised"
    is_all = len(rows) > 1 and len(numbers) == len(rows)
    yield Suspicion(
        Cause.KV_TRANSFER,
        Role.DECODE,
        rows[numbers],
        is_all,
        cost,
        _LONG_Z,
        0,
        (Evidence("transfer_seconds", longest, None, "s", text),),
        ActionAdvice(RemedyKind.MERGE_POOLS if is_all else RemedyKind.MOVE_WORKER),
    )


def _is_surging(view: ModelView, rows: Rows) -> bool:
    """Whether more requests come just now than before, and not for long: a burst passes."""
    arrived = np.nansum(view.blocks("arrivals", rows), axis=0)
    if len(arrived) < 2 * _BURST_BLOCKS:
        return False
    usual = float(np.median(arrived[:-_BURST_BLOCKS]))
    return bool(
        arrived[-2:].mean() > _BURST * usual and arrived[-_BURST_BLOCKS:].min() <= _BURST * usual
    )


def _failed_share(view: ModelView, rows: Rows) -> Floats:
    failed = view.blocks("transfer_failures", rows)
    done = view.blocks("transfers", rows)
    lost = np.nansum(failed[:, -4:], axis=1)
    total = lost + np.nansum(done[:, -4:], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((total > 0) & (lost >= 2), lost / total, 0.0)


def _transfers(
    view: ModelView,
    waits: Waits,
    before: Waits,
    moving: np.ndarray,
    z: Floats,
    size: Floats,
    failed: Floats,
) -> Suspicion:
    numbers = np.flatnonzero(moving)
    rows = waits.rows
    slowest = numbers[np.argmax(size[numbers])]
    onset = int(waits.onset[numbers].min())
    evidence = []
    if size[slowest] > 0:
        ratio = float(np.exp(size[slowest]))
        text = f"a byte of KV takes {ratio:.1f} times as long to arrive as it did"
        evidence.append(Evidence("transfer_seconds", ratio, 1.0, "ratio", text))
    if failed.max() >= _LEAST_FAILED:
        text = f"{failed.max():.0%} of the KV transfers fail"
        evidence.append(Evidence("transfer_failures", float(failed.max()), 0.0, "ratio", text))
    cost = np.zeros(len(view.engines))
    cost[rows] = np.where(moving, waits.excess, 0.0)
    is_all = len(numbers) == len(rows)
    sender = _sender(view, before, onset) if is_all else None
    if sender is not None:
        name = view.engines[sender].place[2]
        text = f"KV stays longer at {name} than at the other prefill engines"
        evidence.append(Evidence("kv_held", 1.0, None, "engine", text))
        # Whoever waits for KV waits at decode engines; those that came through the sender do.
        whole = float((waits.excess * waits.weights).sum())
        cost = np.zeros(len(view.engines))
        cost[sender] = whole * max(len(view.entries), 1)
        return Suspicion(
            Cause.KV_TRANSFER,
            Role.PREFILL,
            np.array([sender]),
            False,
            cost,
            float(max(z.max(), waits.z.max(), 5.0)),
            onset,
            tuple(evidence),
            ActionAdvice(RemedyKind.ROUTE_AWAY),
        )
    return Suspicion(
        Cause.KV_TRANSFER,
        Role.DECODE,
        rows[numbers],
        is_all and len(rows) > 1,
        cost,
        float(max(z.max(), waits.z.max(), 5.0)),
        onset,
        tuple(evidence),
        ActionAdvice(
            RemedyKind.MERGE_POOLS if is_all and len(rows) > 1 else RemedyKind.MOVE_WORKER
        ),
    )


def _sender(view: ModelView, prefill: Waits, onset_block: int) -> int | None:
    """The one prefill engine whose KV is fetched later than that of the others, if one is."""
    rows = view.rows_of(Role.PREFILL)
    if len(rows) < 2:
        return None
    levels = view.changed("kv_held", rows).levels
    before, since = levels[:, :onset_block], levels[:, onset_block:]
    if not since.shape[1]:
        return None
    usual = known_median(np.array([_mean_of_logs(row) for row in before]))
    held = np.array([_mean_of_logs(row) for row in since])
    longer = held - (usual if np.isfinite(usual) else known_median(held) / 2)
    if np.isfinite(longer).sum() < 2:
        return None
    worst = int(np.nanargmax(longer))
    if (prefill.excess[prefill.rows == rows[worst]] > 0).any():
        # It keeps KV longer because its prompts take longer there.
        return None
    others = float(known_median(np.delete(longer, worst)))
    least = max(_HELD_APART * others, _LEAST_HELD * usual if np.isfinite(usual) else 0.0)
    return int(rows[worst]) if longer[worst] >= max(least, _LEAST_HELD_SECONDS) else None


def _mean_of_logs(values: Floats) -> float:
    """The mean of what some logarithms are of; NaN where none is known."""
    known = values[np.isfinite(values)]
    return float(np.exp(known).mean()) if len(known) else float("nan")


def _is_taken(view: ModelView, rows: Rows, usage: Floats, running: Floats) -> np.ndarray:
    """Which engines have no seat, or no room in their cache for one more like those that run."""
    batch = view.latest("batch_limit", rows)
    with np.errstate(invalid="ignore"):
        # Of a few seats one is empty now and then, between two requests.
        seated = running >= np.where(batch <= _FEW_SEATS, _OF_FEW, _OF_MANY) * batch
    one_more = usage * (1 + 1 / np.maximum(running, 1.0))
    return np.asarray(seated | (usage >= FULL) | (one_more >= _FILLED))


def _no_room(
    view: ModelView, waits: Waits, before: Waits, short: np.ndarray, waiting: Floats
) -> Suspicion:
    """Requests wait for a place at decode engines: it is full, or keeps room for what may come."""
    rows = waits.rows
    numbers = np.flatnonzero(short)
    usage = np.nan_to_num(view.recent("kv_usage", rows))
    running = np.nan_to_num(view.recent("running", rows))
    preempted = np.nan_to_num(view.recent("preemptions", rows)) > 0
    worst = numbers[np.argmax(waiting[numbers])]
    taken = _is_taken(view, rows, usage, running) | preempted
    is_reserved = bool(taken[numbers].mean() < _MOST_WITH_ROOM)
    is_all = len(rows) > 1 and len(numbers) == len(rows)
    if is_reserved:
        cause = Cause.PREALLOCATION
        text = (
            f"{waiting[worst]:.0f} requests wait to be let in while its KV cache is only "
            f"{usage[worst]:.0%} in use: room is kept for outputs"
        )
    elif preempted[worst] and not is_all and len(rows) > 1:
        cause = Cause.KV_FULL
        text = f"its KV cache is {usage[worst]:.0%} full and requests lose their place in it"
    else:
        cause = Cause.DECODE_BACK_PRESSURE
        text = (
            f"{waiting[worst]:.0f} requests wait for a place there: {running[worst]:.0f} run, and "
            f"its KV cache is {usage[worst]:.0%} full"
        )
    cost = np.zeros(len(view.engines))
    cost[rows] = np.where(short, waits.excess, 0.0)
    if len(before.rows):
        # What decode does not take stays at prefill engines, and what comes there waits for room.
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
