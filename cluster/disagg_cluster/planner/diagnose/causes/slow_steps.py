"""Why the steps of an engine take longer for the same work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.causes.mixed_steps import (
    as_slow_mixed,
    level_since,
    mixing_evidence,
)
from disagg_cluster.planner.diagnose.causes.suspicion import (
    ActionAdvice,
    Adverse,
    Suspicion,
    joint_strength,
    suspicion_at,
)
from disagg_cluster.planner.diagnose.evidence.known import known_mean, most_known
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import block_means
from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    Cause,
    Evidence,
    RemedyKind,
)
from disagg_exporter.model import Role

# GPU readings are averaged over the last blocks.
_RECENT_BLOCKS = 2
# A GPU is throttled if a reason lowered its clocks for this share of the time.
_THROTTLED_SHARE = 0.1
# Clocks of GPUs under the same work differ by less.
_LEAST_CLOCK_RATIO = 0.95
_LEAST_FOREIGN = 0.04
# An engine allocates its memory once; a later increase by this share of it is another process.
_LEAST_MEMORY_SHARE = 0.01
# An engine is cold for some minutes after its start.
_COLD_SECONDS = 300.0
_FIRST_STEPS_SECONDS = 60.0
# Onsets so few blocks apart count as simultaneous.
_NEAR_BLOCKS = 2
_REMEDY = {
    Cause.SLOW_GPU: RemedyKind.REPLACE_GPU,
    Cause.TP_STRAGGLER: RemedyKind.REPLACE_GPU,
    Cause.STRANGER: RemedyKind.MOVE_WORKER,
    Cause.COLD_START: RemedyKind.NONE,
    Cause.INTERFERENCE: RemedyKind.SET_BATCHED_TOKENS,
}


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """A cause of slow steps with its evidence and an alternative."""

    cause: Cause
    evidence: tuple[Evidence, ...]
    alternative: Alternative | None = None


def slow_suspicions(
    view: ModelView, rows: Rows, slow: Adverse, affected: Rows, cost_seconds: Floats
) -> Iterator[Suspicion]:
    """Slow steps by cause: engines with the same cause are one suspicion.

    Args:
        view: The model.
        rows: The engines of a pool.
        slow: By how much the steps of each are slow.
        affected: The numbers in `rows` of those that delay requests.
        cost_seconds: By number.
    """
    why = why_each_is_slow(view, rows[affected], slow.onset[affected])
    by_cause: dict[Cause, list[int]] = {}
    first: dict[Cause, SlowSteps] = {}
    for number, found in zip(affected.tolist(), why, strict=True):
        by_cause.setdefault(found.cause, []).append(number)
        first.setdefault(found.cause, found)
    if alike := by_cause.get(Cause.INTERFERENCE):
        onset = int(slow.onset[alike].min())
        others = np.setdiff1d(np.arange(len(rows)), affected)
        alike += others[as_slow_mixed(view, rows[alike], rows[others], onset)].tolist()
    for cause, numbers in by_cause.items():
        ratio = float(np.exp(slow.size[numbers[0]]))
        text = f"its steps take {ratio:.2f} times as long for the same work"
        steps = Evidence("slowness", ratio, 1.0, "ratio", text)
        yield suspicion_at(
            view,
            rows,
            np.array(numbers),
            cost_seconds,
            cause=cause,
            strength=joint_strength(slow.z[numbers]),
            onset_block=int(slow.onset[numbers].min()),
            evidence=(steps, *first[cause].evidence),
            advice=ActionAdvice(_REMEDY[cause]),
            alternative=first[cause].alternative,
        )


def why_slow(view: ModelView, row: int, onset_block: int) -> SlowSteps:
    """The cause of an engine's slow steps, by the readings of its GPUs and its process.

    Args:
        view: The model.
        row: The engine.
        onset_block: The block since which its steps are slow.
    """
    young = _young(view, row, onset_block)
    if young is not None:
        return SlowSteps(Cause.COLD_START, (young,))
    foreign = _foreign(view, row, onset_block)
    if foreign is not None:
        return SlowSteps(Cause.STRANGER, (foreign,))
    held_back, is_some = _held_back(view, row, onset_block)
    if is_some:
        return SlowSteps(Cause.TP_STRAGGLER, held_back)
    mixing = None if held_back else mixing_evidence(view, row, onset_block)
    if mixing is not None:
        other = _unless_mixed(view, row, onset_block, Cause.SLOW_GPU)
        return SlowSteps(Cause.INTERFERENCE, (mixing,), other)
    if held_back:
        return SlowSteps(Cause.SLOW_GPU, held_back)
    return SlowSteps(Cause.SLOW_GPU, (), _not_seen(view, row, onset_block))


def why_each_is_slow(view: ModelView, rows: Rows, onset_blocks: Rows) -> list[SlowSteps]:
    """The causes of slow steps of several engines, each by itself and then by the others.

    If mixing slows most engines, it also explains others that became slow at that time and whose
    GPUs show nothing: not every engine has steps of one kind alone.

    Args:
        view: The model.
        rows: The engines.
        onset_blocks: The block since which the steps of each are slow.
    """
    found = [
        why_slow(view, int(row), int(onset)) for row, onset in zip(rows, onset_blocks, strict=True)
    ]
    mixing = np.array([each.cause is Cause.INTERFERENCE for each in found], dtype=np.bool_)
    if 2 * mixing.sum() <= len(found):
        return found
    first = found[int(np.argmax(mixing))]
    near = np.abs(onset_blocks - np.median(onset_blocks[mixing])) <= _NEAR_BLOCKS
    return [
        first if is_near and each.cause is Cause.SLOW_GPU and not each.evidence else each
        for each, is_near in zip(found, near, strict=True)
    ]


def _not_seen(view: ModelView, row: int, onset_block: int) -> Alternative | None:
    """The alternative for slow steps that no reading of the GPUs explains."""
    mixing = _unless_mixed(view, row, onset_block, Cause.INTERFERENCE)
    if mixing is not None or np.isfinite(most_known(_gpu_blocks(view, row, "foreign_sm"))):
        return mixing
    return Alternative(Cause.STRANGER, "no metric shows what other processes take of its GPUs")


def _unless_mixed(view: ModelView, row: int, onset_block: int, other: Cause) -> Alternative | None:
    """`other` as alternative at a mixed engine without steps of one kind to tell the two apart."""
    if view.engines[row].role is not Role.MIXED:
        return None
    if np.isfinite(level_since(view, np.array([row]), "pure_slowness", onset_block + 1)):
        return None
    return Alternative(other, "hardly a step was without prompts, which would tell the two apart")


def age_seconds(view: ModelView, row: int) -> float | None:
    """Age of an engine's process, by its start time or else its series; None if unknown."""
    now = view.changes.fleet.grid.now_seconds
    started = float(view.latest("started", np.array([row]))[0])
    if np.isfinite(started):
        return max(now - started, 0.0)
    alive = view.blocks("alive", np.array([row]))[0]
    if alive[-1] and not alive.all():
        return float((len(alive) - 1 - np.flatnonzero(~alive)[-1]) * view.block_seconds)
    return None


def _young(view: ModelView, row: int, onset_block: int) -> Evidence | None:
    """Evidence that an engine has just started and has been slow since its first steps."""
    age = age_seconds(view, row)
    if age is None or age > _COLD_SECONDS:
        return None
    slow_for = view.changes.fleet.grid.now_seconds - view.since_seconds(onset_block)
    if slow_for < age - _FIRST_STEPS_SECONDS:
        return None
    text = f"its process began {age:.0f} s ago"
    return Evidence("age", age, _COLD_SECONDS, "s", text)


def _gpu_blocks(view: ModelView, row: int, name: str) -> Floats:
    fleet = view.changes.fleet
    gpus = list(fleet.engines[view.fleet_rows[row]].gpus)
    return block_means(fleet.gpus.of(name)[gpus], view.block_bins)


def _foreign(view: ModelView, row: int, onset_block: int) -> Evidence | None:
    foreign = _gpu_blocks(view, row, "foreign_sm")
    share = most_known(foreign[:, -_RECENT_BLOCKS:])
    if np.isfinite(share):
        if share < _LEAST_FOREIGN:
            return None
        text = f"other processes took {share:.0%} of a GPU's SM time"
        return Evidence("foreign_sm", share, 0.0, "ratio", text)
    used = _gpu_blocks(view, row, "memory_used_bytes")
    before, since = used[:, : max(onset_block - 1, 0)], used[:, -_RECENT_BLOCKS:]
    grown = most_known(since) - most_known(before)
    if not grown >= _LEAST_MEMORY_SHARE * most_known(used):
        return None
    text = f"{grown / 1e9:.1f} GB of a GPU's memory were taken since, by another process it seems"
    return Evidence("memory_grown", grown, 0.0, "bytes", text)


def _held_back(view: ModelView, row: int, onset_block: int) -> tuple[tuple[Evidence, ...], bool]:
    """Evidence from GPU clocks and errors, and whether only some of several GPUs are slowed."""
    bin_seconds = view.changes.fleet.grid.step_seconds
    throttled = _recent(_gpu_blocks(view, row, "throttled_seconds")) / bin_seconds
    # A healthy GPU at work is at its limit for most of the time (95 % on an H200 that chats keep
    # busy, its clock 1 to 4 % lower): only what is beyond the usual holds it back.
    capped = _recent(_gpu_blocks(view, row, "capped_seconds")) / bin_seconds
    capped -= _usual_capped(view, row, onset_block) / bin_seconds
    clock = _recent(_gpu_blocks(view, row, "clock_hertz"))
    errors = _gpu_blocks(view, row, "xid_errors"), _gpu_blocks(view, row, "memory_errors")
    found = []
    slow = np.zeros(len(clock), dtype=np.bool_)
    for name, shares, words in (
        ("throttled", throttled, "heat or its board"),
        ("power_capped", capped, "its power limit"),
    ):
        share = float(np.nan_to_num(shares).max(initial=0.0))
        slow |= np.nan_to_num(shares) >= _THROTTLED_SHARE
        if share >= _THROTTLED_SHARE:
            text = f"{words} held a GPU's clock back {min(share, 1.0):.0%} of the time"
            found.append(Evidence(name, min(share, 1.0), 0.0, "ratio", text))
    usual = _usual_clock(view, row)
    least = -most_known(-clock)
    if np.isfinite(least) and np.isfinite(usual):
        slow |= clock < _LEAST_CLOCK_RATIO * usual
        if least < _LEAST_CLOCK_RATIO * usual:
            text = f"a GPU runs at {least / 1e9:.2f} GHz, others at {usual / 1e9:.2f}"
            found.append(Evidence("sm_clock", least, usual, "hertz", text))
    for name, values in zip(("xid_errors", "memory_errors"), errors, strict=True):
        count = float(np.nansum(values))
        if count > 0:
            text = f"its GPUs had {name.replace('_', ' ')} in this time"
            found.append(Evidence(name, count, 0.0, "count", text))
    is_some = bool(slow.any() and not slow.all() and len(slow) > 1)
    return tuple(found), is_some


def _usual_capped(view: ModelView, row: int, onset_block: int) -> float:
    """Seconds a bin at the power limit: of the GPUs of its peers, or else its own before."""
    others = [number for number in _alike(view, row) if number != row]
    usual = [_recent(_gpu_blocks(view, number, "capped_seconds")) for number in others]
    if not usual:
        usual = [_gpu_blocks(view, row, "capped_seconds")[:, : max(onset_block - 1, 0)].ravel()]
    known = np.concatenate(usual)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else 0.0


def _alike(view: ModelView, row: int) -> list[int]:
    """The engine and its peers."""
    likeness = view.engines[row].likeness
    return [number for number, each in enumerate(view.engines) if each.likeness == likeness]


def _usual_clock(view: ModelView, row: int) -> float:
    """The clock of busy GPUs of this engine and its peers."""
    clocks = [_gpu_blocks(view, number, "clock_hertz").ravel() for number in _alike(view, row)]
    every = np.concatenate(clocks) if clocks else np.array([np.nan])
    every = every[np.isfinite(every)]
    # Idle GPUs have a low clock: the upper quantile is of busy ones.
    return float(np.quantile(every, 0.9)) if len(every) else float("nan")


def _recent(values: Floats) -> Floats:
    return known_mean(values[:, -_RECENT_BLOCKS:])
