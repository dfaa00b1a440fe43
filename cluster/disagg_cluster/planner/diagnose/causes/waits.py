"""How long requests wait at each engine, against before and against peers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.causes.giant_prompts import giants
from disagg_cluster.planner.diagnose.causes.overload import (
    LEAST_SHARE,
    has_room_beside,
    lost_block,
)
from disagg_cluster.planner.diagnose.causes.suspicion import SURE_WAIT_Z, own_or_joint_z
from disagg_cluster.planner.diagnose.evidence.engine_changes import Changed
from disagg_cluster.planner.diagnose.evidence.known import known_sum
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.evidence.shifts import (
    LEAST_AFTER,
    change_since,
    log_ratio,
    shift_of,
)

# Least z of a wait longer than before, than at peers, and of one queue beside idle peers.
_OWN_Z, _PEER_Z, _ALONE_Z = 3.5, 4.0, 2.5
_LEAST_CHANGE, _LEAST_APART = np.log(1.15), np.log(1.5)
# Fewer waiting requests give no estimate of how long they will wait.
_LEAST_WAITING = 2.0
# An engine that serves less than this part of its arrivals is jammed.
_JAMMED = 0.5
# Observations whose change may date that of waits, and the z values needed.
_HINTS = (
    *("slowness", "own_slowness", "host_gap", "computed_share", "prompt_length", "share"),
    *("arrivals", "transfer"),
)
_SURE_Z, _HINTED_Z = 6.0, 0.5
_GIANTS_Z = 3.5
_LEAST_HINT = np.log(1.08)
# A queue for so many blocks, with a wait of this part of the target, is too long even if it was
# so before; a part of that wait is the request's own service.
_STANDING_BLOCKS, _LATE, _STANDING_Z, _SERVED_PART = 4, 0.5, 6.0, 0.1
# One of so many earlier blocks may exceed a wait that counts as longer.
_WAVES = 12
# The least cost that counts: this part of the target, or of the wait without it.
LEAST_COST_OF_TARGET = 0.05
_LEAST_COST_OF_WAIT = 0.25
SUSPECTED_PART = 0.5
"""Causes that cost at least this part of the least cost are suspects."""


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Mean waits for the first token by engine, in seconds.

    `now` is observed and includes the queue; `usual` is the baseline, of before or of peers.
    `weights` are the shares of requests. `z` is the significance of the difference. `giants` is
    that of more frequent very long prompts over all of them, and the block since which.
    """

    rows: Rows
    now: Floats
    usual: Floats
    weights: Floats
    z: Floats
    onset: Rows
    giants: tuple[float, int]

    @property
    def excess(self) -> Floats:
        """By how much waits exceed the baseline."""
        return np.nan_to_num(np.maximum(self.now - self.usual, 0.0))


def waits_of(view: ModelView, rows: Rows) -> Waits:
    """Waits at some engines of a model."""
    changed, giant = view.changed("first_token", rows), giants(view, rows)
    blocks = changed.levels.shape[1]
    now, drain, piled_up = _present(view, rows)
    rise = _longer(view, rows, changed)
    limited = _limited_since(view, rows, giant)
    hint = _hinted(view, rows, changed, limited)
    # After a change of limits all requests since count, in bursts and between.
    now = np.where((limited < blocks) & ~rise.longer, np.fmax(now, hint.mean_since), now)
    rise = rise.or_else(hint.rise)
    split = np.where(rise.longer, rise.onset, blocks - LEAST_AFTER)
    before = mean_wait(view, rows, split, is_after=False)
    stuck = piled_up & (now > 3 * before) & np.isfinite(before) & _is_jammed(view, rows)
    standing = ~(rise.longer | stuck) & _stands(view, rows, now)
    # A queue at one engine while its peers have idle time is not chance.
    alone = has_room_beside(view, rows)
    apart = changed.apart_z >= np.where(alone, _ALONE_Z, _PEER_Z)
    apart &= changed.apart >= _LEAST_APART

    usual = np.where(rise.longer | stuck, before, now)
    usual = np.where(standing, np.maximum(now - drain, _SERVED_PART * now), usual)
    beside = now / np.exp(np.where(apart, changed.apart, 0.0))
    usual = np.where(apart, np.minimum(usual, beside), usual)

    z = np.maximum(np.where(rise.longer, rise.z, 0.0), np.where(apart, changed.apart_z, 0.0))
    z = np.where(stuck, np.maximum(z, _OWN_Z), z)
    z = np.where(standing, np.maximum(z, _STANDING_Z), z)
    z = np.where(alone & (z > 0), np.maximum(z, SURE_WAIT_Z), z)
    onset = np.where(rise.longer, rise.onset, blocks).astype(np.intp)
    return Waits(rows, now, usual, _weights(view, rows), z, onset, giant)


@dataclass(frozen=True, slots=True, eq=False)
class _Rise:
    """Where waits are longer than before, with z values and onset blocks."""

    longer: Flags
    z: Floats
    onset: Rows

    def or_else(self, other: _Rise) -> _Rise:
        """Return the other rise where there is none."""
        return _Rise(
            self.longer | other.longer,
            np.where(self.longer, self.z, other.z),
            np.where(self.longer, self.onset, other.onset).astype(np.intp),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Hint:
    """A rise since another observation changed, and the mean waits since then."""

    rise: _Rise
    mean_since: Floats


def _present(view: ModelView, rows: Rows) -> tuple[Floats, Floats, Flags]:
    """Present waits, the times to serve the queues, and where these replace the former.

    A queue that takes much longer than requests have waited so far has piled up.
    """
    ended = view.recent_over("first_token_seconds", "first_tokens", rows)
    drain = _drain_seconds(view, rows)
    waiting = np.nan_to_num(view.recent("waiting", rows))
    piled_up = (waiting >= _LEAST_WAITING) & (drain > 3 * np.nan_to_num(ended))
    return np.where(piled_up, drain, ended), drain, piled_up


def _limited_since(view: ModelView, rows: Rows, giant: tuple[float, int]) -> Rows:
    """The block since which an engine has had other work or limits; the number of blocks if none.

    Waits may be long in some of the blocks since then only.
    """
    giant_z, giant_onset = giant
    since = view.limit_onset(rows)
    if giant_z >= _GIANTS_Z:
        # They go to any engine now and then.
        since = np.minimum(since, giant_onset)
    # The queue of an engine with more than its share comes and goes, too.
    since = np.minimum(since, favoured_since(view, rows, _SURE_Z))
    # The others do the work of an engine that is gone from that block on.
    return np.asarray(np.minimum(since, lost_block(view, rows)), dtype=np.intp)


def _hinted(view: ModelView, rows: Rows, changed: Changed, limited: Rows) -> _Hint:
    """Longer waits since another observation changed, though they are not significant alone."""
    blocks = changed.levels.shape[1]
    onset = np.where(limited < blocks, limited, _hinted_onsets(view, rows)).astype(np.intp)
    change, z = change_since(changed.levels, changed.shift.deviation, onset)
    longer = (onset < blocks) & (z >= _HINTED_Z) & (change >= _LEAST_CHANGE)
    mean_since = mean_wait(view, rows, onset, is_after=True)
    mean_before = mean_wait(view, rows, onset, is_after=False)
    with np.errstate(invalid="ignore"):
        longer |= (limited < blocks) & (mean_since >= np.exp(_LEAST_CHANGE) * mean_before)
    return _Hint(_Rise(longer, z, onset), mean_since)


def _is_jammed(view: ModelView, rows: Rows) -> Flags:
    """Whether an engine serves much less than arrives: it is judged by its queue."""
    served, arrived = view.recent("first_tokens", rows), view.recent("arrivals", rows)
    return np.asarray(np.nan_to_num(served) < _JAMMED * np.nan_to_num(arrived))


def _weights(view: ModelView, rows: Rows) -> Floats:
    """The shares of the requests that came or were served lately; equal ones without any."""
    counts = np.nan_to_num(view.recent("first_tokens", rows))
    counts = counts + np.nan_to_num(view.recent("arrivals", rows))
    total = counts.sum()
    return counts / total if total > 0 else np.full(len(rows), 1 / max(len(rows), 1))


def _longer(view: ModelView, rows: Rows, changed: Changed) -> _Rise:
    """Where waits are significantly longer than before.

    A change at all engines is significant in their pooled waits before it is in those of each.
    """
    shift = changed.shift
    longer = (shift.z >= _OWN_Z) & (shift.change >= _LEAST_CHANGE)
    longer &= shift.after > _highest_before(changed.levels, shift.onset)
    own = _Rise(longer, shift.z, shift.onset)
    if len(rows) < 2:
        return own
    seconds, count = (
        known_sum(view.blocks(name, rows), axis=0)[None]
        for name in ("first_token_seconds", "first_tokens")
    )
    chance = float(np.median(shift.deviation)) / np.sqrt(len(rows))
    pool = shift_of(log_ratio(seconds, count), chance)
    levels = log_ratio(seconds, count)
    if not (
        pool.z[0] >= _OWN_Z
        and pool.change[0] >= _LEAST_CHANGE
        and pool.after[0] > _highest_before(levels, pool.onset)[0]
    ):
        return own
    onset = np.full(len(rows), pool.onset[0], dtype=np.intp)
    change, _ = change_since(changed.levels, shift.deviation, onset)
    together = (change >= _LEAST_CHANGE) & ~longer
    return _Rise(
        longer | together,
        np.where(together, pool.z[0], shift.z),
        np.where(together, onset, shift.onset).astype(np.intp),
    )


def _stands(view: ModelView, rows: Rows, now: Floats) -> Flags:
    """Whether requests have queued without a break for many blocks, and too long for users."""
    target = view.targets.ttft_seconds
    waiting = view.blocks("waiting", rows)[:, -_STANDING_BLOCKS:]
    if not np.isfinite(target) or waiting.shape[1] < _STANDING_BLOCKS:
        return np.zeros(len(rows), dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        return (waiting >= 1).all(axis=1) & (now >= _LATE * target)


def _hinted_onsets(view: ModelView, rows: Rows) -> Rows:
    """The block of the surest change of another observation; the number of blocks if none.

    Waits are the noisiest observation, as queues come and go. Their causes are often significant
    before they are.
    """
    blocks = view.blocks("arrivals", rows).shape[1]
    best, onset = np.full(len(rows), _SURE_Z), np.full(len(rows), blocks, dtype=np.intp)
    for name in _HINTS:
        changed = view.changed(name, rows)
        shift, z = changed.shift, own_or_joint_z(changed)
        surer = (z > best) & (shift.change > _LEAST_HINT)
        onset = np.where(surer, shift.onset, onset)
        best = np.where(surer, z, best)
        all_z = float(shift.z.sum()) / np.sqrt(max(len(rows), 1))
        if all_z >= _SURE_Z and (shift.change > _LEAST_HINT).all() and np.ptp(shift.onset) <= 1:
            # A small change at every engine is jointly significant.
            onset = np.where(onset < blocks, onset, shift.onset)
    return onset


def favoured_since(view: ModelView, rows: Rows, least_z: float) -> Rows:
    """The block since which an engine has been given more than its share of the requests.

    The number of blocks for the others, and where it is less significant than `least_z`.
    """
    given = view.changed("share", rows)
    surely = own_or_joint_z(given) >= least_z
    surely &= np.minimum(given.shift.change, given.shift.after) >= np.log(LEAST_SHARE)
    return np.where(surely, given.shift.onset, given.levels.shape[1]).astype(np.intp)


def _highest_before(levels: Floats, onset: Rows) -> Floats:
    """The highest level before a change, ignoring one for every `_WAVES` blocks: waves recur.

    The deviation between blocks does not cover a queue that comes and goes.
    """
    numbers = np.arange(levels.shape[1])
    before = np.where((numbers < onset[:, None]) & np.isfinite(levels), levels, -np.inf)
    ranked = np.sort(before, axis=1)[:, ::-1]
    rank = np.minimum(onset // _WAVES, levels.shape[1] - 1)
    return np.asarray(ranked[np.arange(len(levels)), rank])


def mean_wait(view: ModelView, rows: Rows, onset: Rows, *, is_after: bool) -> Floats:
    """The mean wait of all requests before a block, or since; NaN without any."""
    numbers = np.arange(view.blocks("arrivals", rows).shape[1])
    chosen = (numbers >= onset[:, None]) if is_after else (numbers < onset[:, None])
    return view.ratio_over("first_token_seconds", "first_tokens", rows, chosen)


def _drain_seconds(view: ModelView, rows: Rows) -> Floats:
    """Time to serve the present queue at the rate of the last blocks; at most its age.

    A rate of hardly any first tokens is too uncertain for a time that nobody has waited yet.
    """
    waiting = view.recent("waiting", rows)
    served = view.recent("first_tokens", rows) / view.block_seconds
    least = 0.5 / view.block_seconds
    drain = np.nan_to_num(waiting) / np.maximum(np.nan_to_num(served), least)
    return np.minimum(drain, view.queued_seconds(rows))


def least_cost_seconds(view: ModelView, usual_seconds: float) -> float:
    """The least cost of a cause to be named: noise and trifles cost less."""
    target = view.targets.ttft_seconds
    if np.isfinite(target):
        return LEAST_COST_OF_TARGET * target
    return max(_LEAST_COST_OF_WAIT * usual_seconds, 0.02)
