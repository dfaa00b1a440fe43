"""Whether KV transfers are slow or fail, and at which end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.diagnose.causes.kv_room import FULL
from disagg_cluster.planner.diagnose.causes.suspicion import (
    ActionAdvice,
    Suspicion,
    adverse,
    suspicion_at,
)
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

_LEAST_SLOWER, _LEAST_APART = float(np.log(1.3)), float(np.log(1.8))
# Receivers slower by this part of the slowdown of the slow ones belong to them.
_SAME_WAY = 0.4
_LEAST_FAILED, _FAILED_BLOCKS, _FEW_FAILURES = 0.02, 4, 3.0
# Transfers that take this part of the target, below the rate of a network meant for KV (40 Gb/s, in
# bytes a second), are slow by themselves.
_LONG_OF_TARGET, _LONG_Z, _SLOW_LINK = 0.1, 6.0, 5e9
# z of the one sender whose KV stays longer than at any other; more is needed if bytes take equally
# long in every block, as if all senders were slow.
_HELD_Z, _HELD_SURE_Z, _HELD_MORE_Z, _HELD_APART = 4.0, 8.0, 3.0, 3.0
_LEAST_SAMPLES = 3
# If one sender of several is slow, seconds per byte vary with its share of transfers; below this
# part of that variation all are slow.
_EVEN = 0.4


@dataclass(frozen=True, slots=True, eq=False)
class SlowTransfers:
    """The suspicion of transfers, and which decode engines wait for them."""

    suspicion: Suspicion
    moving: NDArray[np.bool_]


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
    sender = _sender(view, before, rows[numbers], onset) if is_all else None
    if sender is not None:
        name = view.engines[sender].place[2]
        text = f"KV stays longer at {name} than at the other prefill engines"
        evidence.append(Evidence("kv_held", 1.0, None, "engine", text))
        # Waits are observed at decode engines, but belong to requests through the sender.
        whole = float((waits.excess * waits.weights).sum())
        cost = np.zeros(len(view.engines))
        cost[sender] = whole * max(len(view.entries), 1)
        return Suspicion(
            Cause.KV_TRANSFER,
            Role.PREFILL,
            np.array([sender]),
            False,
            cost,
            strength,
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


def _sender(view: ModelView, prefill: Waits, slow: Rows, onset_block: int) -> int | None:
    """The one prefill engine whose KV is fetched later than that of the others, if any.

    From the tokens that stay in its cache (Little 1961), scrape by scrape.
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
        return int(rows[most])
    readings, bins = view.changes.fleet.readings, view.block_bins
    held = (readings.of("kv_usage") * readings.of("kv_tokens"))[view.fleet_rows[rows]]
    blocks = view.blocks("arrivals", rows).shape[1]
    begin = held.shape[1] - (blocks - onset_block) * bins
    old, new = held[:, :begin], held[:, begin + bins :]
    counts = np.array([np.isfinite(part).sum(axis=1) for part in (old, new)])
    if (counts < _LEAST_SAMPLES).any():
        return None
    more = np.nanmean(new, axis=1) - np.nanmean(old, axis=1)
    # Caches of similar engines have similar variance: it is averaged with that of all.
    variances = np.nanvar(old, axis=1)
    error = np.sqrt((variances + variances.mean()) / 2 * (1 / counts[0] + 1 / counts[1]))
    z = more / np.maximum(error, 1.0)
    worst, next_worst = np.argsort(z)[::-1][:2]
    others = float(np.delete(more, worst).max())
    least_z = _HELD_SURE_Z if _is_even(view, slow, len(rows), onset_block) else _HELD_Z
    is_one = z[worst] >= least_z and z[worst] - z[next_worst] >= _HELD_MORE_Z
    if not is_one or more[worst] < _HELD_APART * others:
        return None
    is_full = view.recent("kv_usage", rows[worst : worst + 1])[0] >= FULL
    if not is_full and (prefill.excess[prefill.rows == rows[worst]] > 0).any():
        # It keeps KV longer because its prompts take longer there.
        return None
    return int(rows[worst])


def _is_even(view: ModelView, slow: Rows, senders: int, onset_block: int) -> bool:
    """Whether bytes take equally long in every block, unlike a mixture of fast and slow senders.

    The share of transfers from one sender of several varies (binomial).
    """
    seconds, size, count = (
        view.blocks(name, slow)[:, onset_block + 1 :]
        for name in ("transfer_seconds", "transfer_bytes", "transfers")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        each = seconds / size
    known = np.isfinite(each) & (each > 0)
    if known.sum() < 2:
        return False
    variation = float(np.std(each[known]) / np.mean(each[known]))
    by_chance = float(np.sqrt((senders - 1) / np.mean(count[known])))
    return variation < _EVEN * by_chance
