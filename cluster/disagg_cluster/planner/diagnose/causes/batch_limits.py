"""Step limits of an engine that delay requests: too small, or too large."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.diagnose.causes.kv_room import FULL
from disagg_cluster.planner.diagnose.causes.suspicion import (
    CHANGED_Z,
    ActionAdvice,
    Suspicion,
    suspicion_at,
)
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.known import known_sum
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    Cause,
    Evidence,
    RemedyKind,
)
from disagg_cluster.planner.history.load_series import quotient
from disagg_exporter.model import Role

_LEAST_WAITING = 1.0
# Steps of at least this part of their limit count as full.
_AT_LIMIT, _FULL_STEPS = 0.6, 0.9
# A limit is too small below this part of the knee; or, without a known knee, if it was this much
# larger before or is at peers, or is below any knee that we know of.
_OF_KNEE, _SMALLER, _NO_KNEE_TOKENS = 0.8, 1.4, 512
# A limit is too large if it was this much smaller before, or from this size on, and if a prompt
# takes so many times as long in its steps as it would alone.
_LARGER, _LARGE_TOKENS, _CROWDED, _OVER_KNEE = 1.5, 32_768, 8.0, 24.0
_SLOTS_TAKEN, _SLOTS_OFTEN_TAKEN = 0.9, 0.6
# Batch slots taken to this part for so many blocks, while requests queue for this part of the
# target.
_SLOTS_LONG_TAKEN, _STANDING_BLOCKS, _LONG_OF_TARGET = 0.7, 8, 0.1
_LIKELY_Z = 6.0
# A wait longer than at peers by this counts where a limit explains it.
_LEAST_APART, _APART_Z = float(np.log(1.5)), 2.5
# Steps at the knee reach this part of the best rate, which lowers what smaller steps gain.
_SLOWER_STEPS = 0.8


def batch_limits(view: ModelView, waits: Waits) -> tuple[Suspicion, ...]:
    """Engines whose limits are too small for the queue, or let too many share a step."""
    return (*_underfilled(view, waits), *_overfilled(view, waits))


def _underfilled(view: ModelView, waits: Waits) -> Iterator[Suspicion]:
    standing = _standing(view, waits)
    named = np.zeros(0, dtype=np.intp)
    if small_steps := _small_steps(view, waits, standing):
        yield small_steps
        named = small_steps.rows
    if few_slots := _few_slots(view, waits, standing, ~np.isin(waits.rows, named)):
        yield few_slots


def _standing(view: ModelView, waits: Waits) -> Flags:
    """Whether an engine with room in its cache has a lasting queue and longer waits."""
    waiting = view.blocks("waiting", waits.rows)[:, -2:]
    with np.errstate(invalid="ignore"):
        # Just after a limit was changed the queue is still short.
        piled = (waiting >= _LEAST_WAITING).all(axis=1) | _is_changed(view, waits.rows)
    return np.asarray(piled & _has_room(view, waits.rows) & (waits.excess > 0))


def _small_steps(view: ModelView, waits: Waits, standing: Flags) -> Suspicion | None:
    """Engines whose steps are too small to be efficient, and full."""
    rows = waits.rows
    limit, knee = (view.latest(name, rows) for name in ("step_limit_tokens", "knee_tokens"))
    before = view.first("step_limit_tokens", rows)
    tokens = view.recent_over("step_tokens", "steps", rows)
    beside = _longer_than_peers(view, waits)
    with np.errstate(invalid="ignore"):
        too_small = limit < np.where(np.isfinite(knee), _OF_KNEE * knee, _NO_KNEE_TOKENS)
        too_small |= limit * _SMALLER <= np.fmax(before, _usual_of_peers(before))
        # Prompts that are always cut into such steps are delayed by the limit itself.
        full = _has_room(view, rows) & (np.fmax(waits.excess, beside) > 0) & too_small
        full &= _usual_step_tokens(view, rows) >= _AT_LIMIT * limit
        short = (standing | full) & too_small & (tokens >= _AT_LIMIT * limit)
    if not short.any():
        return None
    # Engines with as low a limit are limited, too, though their queues come and go.
    numbers = np.flatnonzero(short | (too_small & np.isfinite(waits.now)))
    first = int(np.flatnonzero(short)[0])
    best = float(np.nanmax([knee[first], before[first], _NO_KNEE_TOKENS]))
    text = (
        f"steps of at most {tokens[first]:.0f} tokens are inefficiently small, "
        f"and {_queue(view, rows[numbers]):.0f} wait"
    )
    return _suspicion(
        view,
        waits,
        numbers,
        Cause.UNDERFILLED,
        Evidence("step_tokens", float(tokens[first]), best, "tokens", text),
        ActionAdvice(RemedyKind.SET_BATCHED_TOKENS, round(best)),
        np.fmax(waits.excess, np.where(full, beside, 0.0)),
    )


def _few_slots(view: ModelView, waits: Waits, standing: Flags, is_free: Flags) -> Suspicion | None:
    """Engines, of those that are free to be named, whose requests queue for a batch slot."""
    rows = waits.rows
    batch = view.latest("batch_limit", rows)
    queued = _queued_for_slots(view, rows, batch)
    with np.errstate(invalid="ignore"):
        taken = np.where(_is_changed(view, rows), _SLOTS_OFTEN_TAKEN, _SLOTS_TAKEN) * batch
        short = is_free & (standing & (view.recent("running", rows) >= taken) | (queued > 0))
    if not short.any():
        return None
    first = int(np.flatnonzero(short)[0])
    alike = (batch <= batch[first]) & np.isfinite(waits.now)
    numbers = np.flatnonzero(is_free & (short | alike))
    slots = float(batch[first])
    text = (
        f"{slots:.0f} requests may run at once, "
        f"and {_queue(view, rows[numbers]):.0f} wait while there is room"
    )
    return _suspicion(
        view,
        waits,
        numbers,
        Cause.UNDERFILLED,
        Evidence("running", slots, None, "requests", text),
        ActionAdvice(RemedyKind.SET_SEQS, None),
        # Requests wait for a slot in the queue, and nowhere else.
        np.fmax(np.fmin(waits.excess, _queue_since_changed(view, rows)), queued),
    )


def _has_room(view: ModelView, rows: Rows) -> Flags:
    return np.asarray(np.nan_to_num(view.recent("kv_usage", rows)) < FULL)


def _is_changed(view: ModelView, rows: Rows) -> Flags:
    """Whether an engine's limits were changed within the window."""
    return np.asarray(view.limit_onset(rows) < view.blocks("waiting", rows).shape[1])


def _queue(view: ModelView, rows: Rows) -> float:
    """The mean number of requests that wait at an engine, over the last two blocks."""
    return float(np.nan_to_num(view.blocks("waiting", rows)[:, -2:]).mean())


def full_steps(view: ModelView, rows: Rows) -> Alternative | None:
    """The alternative for busy engines whose steps are all full while their knee is not known."""
    limit = view.latest("step_limit_tokens", rows)
    with np.errstate(invalid="ignore"):
        is_full = view.recent_over("step_tokens", "steps", rows) >= _FULL_STEPS * limit
    if not (is_full & np.isnan(view.latest("knee_tokens", rows))).all():
        return None
    text = "all steps are full, and no metric shows whether larger ones would be faster"
    return Alternative(Cause.UNDERFILLED, text)


def _longer_than_peers(view: ModelView, waits: Waits) -> Floats:
    """Seconds that requests wait longer than at peers; 0 if not significant.

    The threshold is lower than for waits alone, as a limit that is too small must explain it.
    """
    changed = view.changed("first_token", waits.rows)
    longer = (changed.apart >= _LEAST_APART) & (changed.apart_z >= _APART_Z)
    return np.asarray(np.where(longer, waits.now * -np.expm1(-changed.apart), 0.0))


def _usual_step_tokens(view: ModelView, rows: Rows) -> Floats:
    """Tokens of the mean step over many blocks; NaN with fewer blocks."""
    tokens, steps = (
        known_sum(view.blocks(name, rows)[:, -_STANDING_BLOCKS:])
        for name in ("step_tokens", "steps")
    )
    if view.blocks("steps", rows).shape[1] < _STANDING_BLOCKS:
        return np.full(len(rows), np.nan)
    return quotient(tokens, steps)


def _queued_for_slots(view: ModelView, rows: Rows, batch: Floats) -> Floats:
    """Seconds that requests queue because hardly a batch slot is free; 0 unless that is long.

    Such a limit may predate the window, without a past or peers to compare with. Slots are taken
    for many blocks, or whenever a scrape shows a queue: of the mean queue, the share of those among
    all such scrapes and one more counts.
    """
    running, waiting, usage = (
        view.blocks(name, rows)[:, -_STANDING_BLOCKS:]
        for name in ("running", "waiting", "kv_usage")
    )
    seconds, count = (
        known_sum(view.blocks(name, rows)[:, -_STANDING_BLOCKS:])
        for name in ("queue_seconds", "queue_count")
    )
    if running.shape[1] < _STANDING_BLOCKS or not np.isfinite(view.targets.ttft_seconds):
        return np.zeros(len(rows))
    queue = quotient(seconds, count)
    with np.errstate(invalid="ignore"):
        occupied = running.mean(axis=1) >= _SLOTS_LONG_TAKEN * batch
        occupied &= waiting.mean(axis=1) > 0
        of_slots = np.where(occupied, queue, queue * _share_without_slot(view, rows, batch))
        room = usage.max(axis=1) < FULL
        late = of_slots >= _LONG_OF_TARGET * view.targets.ttft_seconds
        return np.where(room & late, of_slots, 0.0)


def _share_without_slot(view: ModelView, rows: Rows, batch: Floats) -> Floats:
    """The share of the scrapes with a queue, and of one more, in which all slots are taken."""
    readings, chosen = view.changes.fleet.readings, view.fleet_rows[rows]
    running, waiting = (
        readings.of(name)[chosen, -_STANDING_BLOCKS * view.block_bins :]
        for name in ("running", "waiting")
    )
    is_queued = waiting >= _LEAST_WAITING
    is_taken = running >= _SLOTS_TAKEN * batch[:, None]
    return np.asarray((is_queued & is_taken).sum(axis=1) / (is_queued.sum(axis=1) + 1))


def _queue_since_changed(view: ModelView, rows: Rows) -> Floats:
    """Mean seconds in the queue since a limit was changed, or of the last blocks if they are more.

    NaN where unknown.
    """
    numbers = np.arange(view.blocks("queue_count", rows).shape[1])
    is_since = numbers >= view.limit_onset(rows)[:, None]
    of_all = view.ratio_over("queue_seconds", "queue_count", rows, is_since)
    return np.fmax(of_all, view.recent_over("queue_seconds", "queue_count", rows))


def _overfilled(view: ModelView, waits: Waits) -> Iterator[Suspicion]:
    """Engines with too large steps: a prompt waits for all others in its step."""
    rows = waits.rows
    limit = view.latest("step_limit_tokens", rows)
    before = view.first("step_limit_tokens", rows)
    since = np.where(limit >= _LARGER * before, view.limit_onset(rows), 0)
    is_since = np.arange(view.blocks("step_seconds", rows).shape[1]) >= since[:, None]
    stage, own = (
        view.ratio_over(name, "prompt_stage_count", rows, is_since)
        for name in ("prompt_stage_seconds", "step_seconds")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        crowd = stage / own
        large = (limit >= _LARGER * before) | (limit >= _LARGE_TOKENS)
        # In order of arrival a prompt would on average wait for half of the others.
        gain = stage * (_SLOWER_STEPS - 1 / crowd) / 2
        # Where larger steps still cost less per token, waiting for them pays.
        large &= ~(limit < _OVER_KNEE * view.latest("knee_tokens", rows))
        crowded = large & (crowd >= _CROWDED)
        has_past = limit >= _LARGER * before
    # Crowded steps come with bursts, which differ: the past alone is no baseline.
    cost = np.nan_to_num(np.where(crowded, np.fmax(waits.excess, gain), 0.0))
    numbers = np.flatnonzero(cost > 0)
    if len(numbers):
        numbers = np.flatnonzero((cost > 0) | (has_past & has_past[numbers].all()))
    if not len(numbers) or view.engines[rows[0]].role is Role.DECODE:
        return
    worst = int(numbers[np.argmax(cost[numbers])])
    knee = float(view.latest("knee_tokens", rows)[worst])
    best = float(np.nanmax([knee * 2, before[worst], 4 * _NO_KNEE_TOKENS]))
    text = (
        f"steps may have {limit[worst]:.0f} tokens, and a prompt takes {crowd[worst]:.1f} times "
        f"as long among the others in them as by itself"
    )
    yield _suspicion(
        view,
        waits,
        numbers,
        Cause.OVERFILLED,
        Evidence("crowd", float(crowd[worst]), 1.0, "ratio", text),
        ActionAdvice(RemedyKind.SET_BATCHED_TOKENS, round(best)),
        cost,
    )


def _usual_of_peers(before: Floats) -> Floats:
    """The limit that most engines had at the window's start, or more.

    Raising one later makes no other too small, nor does a larger one at one of two engines.
    """
    known = np.sort(before[np.isfinite(before)])
    usual = float(known[(len(known) - 1) // 2]) if len(known) else np.nan
    return np.full(len(before), usual)


def _suspicion(
    view: ModelView,
    waits: Waits,
    numbers: Rows,
    cause: Cause,
    evidence: Evidence,
    advice: ActionAdvice,
    cost: Floats,
) -> Suspicion:
    is_changed = bool(_is_changed(view, waits.rows[numbers]).any())
    return suspicion_at(
        view,
        waits.rows,
        numbers,
        cost,
        cause=cause,
        strength=max(float(waits.z[numbers].max()), CHANGED_Z if is_changed else _LIKELY_Z),
        onset_block=int(waits.onset[numbers].min()),
        evidence=(evidence,),
        advice=advice,
        is_reported=is_changed,
    )
