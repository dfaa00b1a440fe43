"""Whether KV transfers are slow or fail, and at which end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.causes.kv_room import FULL
from disagg_cluster.planner.diagnose.causes.suspicion import (
    SURE_WAIT_Z,
    ActionAdvice,
    Suspicion,
    adverse,
    suspicion_at,
)
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Flags, Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

_LEAST_SLOWER, _LEAST_APART = float(np.log(1.3)), float(np.log(1.8))
# Receivers slower by this part of the slowdown of the slow ones belong to them.
_SAME_WAY = 0.4
_LEAST_FAILED, _FAILED_BLOCKS, _FEW_FAILURES = 0.02, 4, 3.0
# Transfers that take this part of the target, below the rate of a network meant for KV (40 Gb/s, in
# bytes a second), are slow by themselves.
_LONG_OF_TARGET, _LONG_Z, _SLOW_LINK = 0.1, 6.0, 5e9
# z of the one sender whose KV stays longer than at any other; more is needed if bytes always take
# equally long, as if all senders were slow.
_HELD_Z, _HELD_SURE_Z, _HELD_MORE_Z, _HELD_APART = 4.0, 8.0, 3.0, 3.0
_LEAST_SAMPLES = 3
# If one sender of several is slow, seconds per byte vary with its share of transfers; below this
# part of that variation all are slow. Before, they vary so many times less.
_EVEN, _TIMES_BEFORE = 0.4, 3.0
# That one of several is slow is known then; which one follows from a difference of so many standard
# errors to the next.
_LIKELIEST_Z = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class SlowTransfers:
    """The suspicion of transfers, and which decode engines wait for them."""

    suspicion: Suspicion
    moving: Flags


def transfer_suspicion(view: ModelView, waits: Waits, before: Waits) -> SlowTransfers | None:
    """The cause of late KV at decode engines, if any.

    Args:
        view: The model.
        waits: At decode engines.
        before: At prefill engines.
    """
    rows = waits.rows
    changed = view.changed("transfer", rows)
    slower = adverse(
        changed, _LEAST_SLOWER, least_apart=_LEAST_APART, since=waits.onset, since_z=waits.z
    )
    failed = _failed_share(view, rows)
    affected = (slower.size > 0) | (failed >= _LEAST_FAILED)
    if not (affected & (waits.excess > 0)).any():
        return _long_transfers(view, rows)
    change = changed.shift.change
    if (slower.size > 0).any():
        usual = float(np.median(slower.size[slower.size > 0]))
        affected |= change >= max(_SAME_WAY * usual, _LEAST_SLOWER)
    return SlowTransfers(
        _transfers(view, waits, before, affected, slower.z, slower.size, failed), affected
    )


def _long_transfers(view: ModelView, rows: Rows) -> SlowTransfers | None:
    """Transfers that have always taken a large part of the target."""
    each = view.recent_over("transfer_seconds", "transfers", rows)
    target = view.targets.ttft_seconds
    a_byte = view.recent_over("transfer_seconds", "transfer_bytes", rows)
    with np.errstate(invalid="ignore"):
        numbers = np.flatnonzero((each >= _LONG_OF_TARGET * target) & (a_byte > 1 / _SLOW_LINK))
    if not np.isfinite(target) or not len(numbers):
        return None
    longest = float(each[numbers].max())
    text = f"the KV of a prompt takes {longest:.2f} s to arrive, of {target:.2f} s promised"
    is_all = len(rows) > 1 and len(numbers) == len(rows)
    suspicion = suspicion_at(
        view,
        rows,
        numbers,
        each,
        cause=Cause.KV_TRANSFER,
        strength=_LONG_Z,
        onset_block=0,
        evidence=(Evidence("transfer_seconds", longest, None, "s", text),),
        advice=ActionAdvice(RemedyKind.MERGE_POOLS if is_all else RemedyKind.MOVE_WORKER),
    )
    # Unchanged transfers do not explain other waits there: those have causes of their own.
    return SlowTransfers(suspicion, np.zeros(len(rows), dtype=np.bool_))


def _failed_share(view: ModelView, rows: Rows) -> Floats:
    """Share of recent transfers to each engine that failed.

    Engines with too few transfers to tell are assumed to be like the others.
    """
    lost, done = (
        np.nansum(view.blocks(name, rows)[:, -_FAILED_BLOCKS:], axis=1)
        for name in ("transfer_failures", "transfers")
    )
    total = lost + done
    if lost.sum() < 2:
        return np.zeros(len(rows))
    usual = float(lost.sum() / total.sum())
    of_failing = float(lost.sum() / total[lost > 0].sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(total > 0, lost / total, 0.0)
    is_like = (lost > 0) | (of_failing * total < _FEW_FAILURES)
    return np.where(is_like, np.maximum(own, usual), own)


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
    is_all, strength = len(numbers) == len(rows), float(max(z.max(), waits.z.max(), 5.0))
    is_slow = bool(size[slowest] > 0)
    sender = _sender(view, before, rows[numbers], onset, is_slow=is_slow) if is_all else None
    if sender is not None:
        name = view.engines[sender.row].place[2]
        text = f"KV stays longer at {name} than at the other prefill engines"
        if not sender.is_sure:
            text = f"transfers take unequally long, as from one slow sender, and {text}"
        evidence.append(Evidence("kv_held", 1.0, None, "engine", text))
        # Waits are observed at decode engines, but belong to requests through the sender.
        whole = float((waits.excess * waits.weights).sum())
        cost = np.zeros(len(view.engines))
        cost[sender.row] = whole * max(len(view.entries), 1)
        return Suspicion(
            Cause.KV_TRANSFER,
            Role.PREFILL,
            np.array([sender.row]),
            False,
            cost,
            strength if sender.is_sure else min(strength, SURE_WAIT_Z),
            onset,
            tuple(evidence),
            ActionAdvice(RemedyKind.ROUTE_AWAY),
        )
    is_pool = is_all and len(rows) > 1
    return suspicion_at(
        view,
        rows,
        numbers,
        waits.excess,
        cause=Cause.KV_TRANSFER,
        strength=strength,
        onset_block=onset,
        evidence=tuple(evidence),
        advice=ActionAdvice(RemedyKind.MERGE_POOLS if is_pool else RemedyKind.MOVE_WORKER),
    )


@dataclass(frozen=True, slots=True)
class _Sender:
    """A slow sender; unless it is sure, one of several is, most likely this one."""

    row: int
    is_sure: bool = True


def _sender(
    view: ModelView, prefill: Waits, affected: Rows, onset_block: int, *, is_slow: bool
) -> _Sender | None:
    """The one prefill engine whose KV is fetched later than that of the others, if any.

    From the tokens that stay in its cache (Little 1961), scrape by scrape. Transfers that fail are
    not timed, so that only those that are slow show whether one sender of several is.
    """
    rows = view.rows_of(Role.PREFILL)
    if len(rows) < 2:
        return None
    # Expired KV is counted by the engine that held it.
    expired = np.nansum(view.blocks("transfer_failures", rows)[:, -_FAILED_BLOCKS:], axis=1)
    most = int(np.argmax(expired))
    if (
        expired[most] >= _FEW_FAILURES
        and expired[most] >= _HELD_APART * np.delete(expired, most).max()
    ):
        return _Sender(int(rows[most]))
    begin = _first_bin(view, onset_block)
    kept = _unfetched_tokens(view, rows, begin)
    old, new = kept[:, :begin], kept[:, begin + view.block_bins :]
    counts = np.array([np.isfinite(part).sum(axis=1) for part in (old, new)])
    if (counts < _LEAST_SAMPLES).any():
        return None
    more = np.nanmean(new, axis=1) - np.nanmean(old, axis=1)
    is_even = _unevenness(view, affected, len(rows), onset_block) < _EVEN
    is_one = is_slow and not is_even and len(affected) > 1
    # Caches of similar engines have similar variance: it is averaged with that of all.
    was, has = np.nanvar(old, axis=1), np.nanvar(new, axis=1)
    variances = has.mean() if is_one else (was + was.mean()) / 2
    if is_slow and is_even:
        # All seem slow: then the KV at each varies more, and one has more by chance.
        variances = np.maximum(variances, (has + has.mean()) / 2)
    z = more / np.maximum(np.sqrt(variances * (1 / counts[0] + 1 / counts[1])), 1.0)
    worst, next_worst = np.argsort(z)[::-1][:2]
    if is_one:
        if z[worst] - z[next_worst] < _LIKELIEST_Z:
            return None
    else:
        least_z = _HELD_SURE_Z if is_even else _HELD_Z
        is_far = z[worst] >= least_z and z[worst] - z[next_worst] >= _HELD_MORE_Z
        if not is_far or more[worst] < _HELD_APART * float(np.delete(more, worst).max()):
            return None
    is_full = view.recent("kv_usage", rows[worst : worst + 1])[0] >= FULL
    if not is_full and (prefill.excess[prefill.rows == rows[worst]] > 0).any():
        # It keeps KV longer because its prompts take longer there.
        return None
    return _Sender(int(rows[worst]), is_sure=z[worst] - z[next_worst] >= _HELD_MORE_Z)


def _first_bin(view: ModelView, block: int) -> int:
    """The first bin of a block."""
    blocks = int(view.blocks("arrivals", view.entries).shape[1])
    return view.changes.fleet.grid.bins - (blocks - block) * view.block_bins


def _unfetched_tokens(view: ModelView, rows: Rows, begin: int) -> Floats:
    """Tokens in caches beyond those of running prompts, as these were before a bin."""
    readings, chosen = view.changes.fleet.readings, view.fleet_rows[rows]
    held = (readings.of("kv_usage") * readings.of("kv_tokens"))[chosen]
    running = readings.of("running")[chosen]
    known = np.isfinite(held[:, :begin]) & np.isfinite(running[:, :begin])
    tokens, count = held[:, :begin][known], running[:, :begin][known]
    each = float(tokens @ count) / max(float(count @ count), 1.0)
    return np.asarray(held - each * np.nan_to_num(running))


def _unevenness(view: ModelView, slow: Rows, senders: int, onset_block: int) -> float:
    """How much the time of a byte varies between scrapes, over what one slow sender would cause.

    If one sender of several is slow it varies with the sender's share of transfers (binomial); if
    all are slow it is always the same. 0 if it hardly varies more than before.
    """
    readings, chosen = view.changes.fleet.readings, view.fleet_rows[slow]
    begin = _first_bin(view, onset_block)
    seconds, size, count = (
        readings.of(name)[chosen] for name in ("transfer_seconds", "transfer_bytes", "transfers")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(size > 0, seconds / size, np.nan)
    old, new = each[:, :begin], each[:, begin + view.block_bins :]
    known = np.isfinite(new) & (new > 0)
    if known.sum() < _LEAST_SAMPLES:
        return 0.0
    variation = float(np.std(new[known]) / np.mean(new[known]))
    usual = old[np.isfinite(old)]
    before = float(np.std(usual) / np.mean(usual)) if len(usual) > 1 else 0.0
    if variation < _TIMES_BEFORE * before:
        return 0.0
    by_chance = float(np.sqrt((senders - 1) / np.mean(count[:, begin + view.block_bins :][known])))
    return variation / by_chance
