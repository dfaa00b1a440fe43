"""A suspected cause with its cost and evidence, before it becomes a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.diagnose.evidence.engine_changes import Changed
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import change_since
from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    Cause,
    Evidence,
    RemedyKind,
)
from disagg_exporter.model import Role

# Least z against the own past, and against peers. The first is the maximum over all possible
# onsets.
OWN_Z, PEER_Z = 4.0, 4.0
# Less suffices for each if both agree.
_BOTH_Z, _JOINT_Z = 2.5, 6.0
# The same at the onset of waits: the surer these are, the less is needed.
SINCE_Z, SURE_SINCE_Z, SURE_PEER_Z = 3.5, 2.7, 3.0
SURE_WAIT_Z = 8.0
# Strength of a limit that was changed: that is known, not estimated.
CHANGED_Z = 8.0
# Onsets so few blocks apart count as the same: both are estimates.
_NEAR_BLOCKS = 2
# A finding of this strength is believed in the second round.
LIKELY_Z = 4.6


@dataclass(frozen=True, slots=True)
class ActionAdvice:
    """The action that would help; `value` is that of a `set_…` action."""

    kind: RemedyKind
    value: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Suspicion:
    """A cause and the engines it affects.

    `rows` are those of the model's view; `is_pool` says that it affects the role as a whole.
    `cost_seconds` is by row of the view: what it adds to the wait of the requests there. `strength`
    is the significance of the evidence in standard errors. `is_reported`: it is known, as engines
    report the limit that was changed, not estimated.
    """

    cause: Cause
    role: Role
    rows: Rows
    is_pool: bool
    cost_seconds: Floats
    strength: float
    onset_block: int
    evidence: tuple[Evidence, ...]
    advice: ActionAdvice
    alternative: Alternative | None = None
    is_reported: bool = False


def suspicion_at(
    view: ModelView,
    rows: Rows,
    numbers: Rows,
    cost_seconds: Floats,
    *,
    cause: Cause,
    strength: float,
    onset_block: int,
    evidence: tuple[Evidence, ...],
    advice: ActionAdvice,
    alternative: Alternative | None = None,
    is_reported: bool = False,
) -> Suspicion:
    """A cause at some engines of a pool; at all of several it affects the pool as a whole.

    `rows` are the pool's in `view`, `numbers` those of the affected ones among them, and
    `cost_seconds` is by number. The rest are the fields of a `Suspicion`.
    """
    whole = np.zeros(len(view.engines))
    whole[rows[numbers]] = cost_seconds[numbers]
    roles = {view.engines[row].role for row in rows[numbers]}
    return Suspicion(
        cause,
        roles.pop() if len(roles) == 1 else Role.MIXED,
        rows[numbers],
        len(rows) > 1 and len(numbers) == len(rows),
        whole,
        strength,
        onset_block,
        evidence,
        advice,
        alternative,
        is_reported,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Adverse:
    """By how much an observation is worse than expected, by engine: a logarithm, 0 if it is not.

    `z` is its significance, `onset` the block it began in.
    """

    size: Floats
    z: Floats
    onset: Rows


def own_or_joint_z(changed: Changed) -> Floats:
    """Significance of an increase against the own past, as z; larger if peers agree."""
    own, apart = changed.shift.z, changed.apart_z
    both = np.where((own >= _BOTH_Z) & (apart >= _BOTH_Z), np.hypot(own, apart), 0.0)
    return np.asarray(np.maximum(own, np.where(both >= _JOINT_Z, both, 0.0)))


def adverse(
    changed: Changed,
    least_change: float,
    *,
    least_apart: float | None = None,
    since: Rows | None = None,
    since_z: Floats | None = None,
) -> Adverse:
    """Increases against the own past, or against peers.

    Args:
        changed: The observation.
        least_change: Smaller changes against the own past are ignored.
        least_apart: The same against peers, which are never quite alike; None ignores peers.
        since: By engine the block since which requests wait longer, else the number of blocks: a
            change at about that time needs less evidence, as few onsets were chosen from.
        since_z: Significance of that wait, by engine.
    """
    shift, joint = changed.shift, own_or_joint_z(changed)
    own = (joint >= OWN_Z) & (shift.change >= least_change)
    size = np.where(own, shift.change, 0.0)
    strength = np.where(own, joint, 0.0)
    onset = np.where(own, shift.onset, 0)
    if since is not None:
        blocks = changed.levels.shape[1]
        is_near = (since < blocks) & (np.abs(shift.onset - since) <= _NEAR_BLOCKS)
        near = is_near & (shift.z >= SINCE_Z) & (shift.change >= least_change)
        size, strength = np.where(near, shift.change, size), np.where(near, joint, strength)
        onset, own = np.where(near, shift.onset, onset), own | near
        change, z = change_since(changed.levels, shift.deviation, since)
        sure = np.zeros(len(z)) if since_z is None else since_z
        then = (
            (z >= np.where(sure >= SURE_WAIT_Z, SURE_SINCE_Z, SINCE_Z))
            & (change >= least_change)
            & ~own
        )
        size, strength = np.where(then, change, size), np.where(then, z, strength)
        onset, own = np.where(then, since, onset), own | then
        # Two that agree are stronger evidence than the weaker of them.
        together = (then | near) & (sure >= SURE_WAIT_Z) & (strength >= SINCE_Z)
        strength = np.where(together, np.maximum(strength, LIKELY_Z), strength)
    if least_apart is not None:
        apart, apart_z = changed.apart, changed.apart_z
        sure = np.zeros(len(apart)) if since_z is None else since_z
        least_z = np.where(sure >= SURE_WAIT_Z, SURE_PEER_Z, PEER_Z)
        beside = (apart_z >= least_z) & (apart >= least_apart) & ~own
        size = np.where(beside, apart, size)
        strength = np.where(beside, apart_z, strength)
    return Adverse(size, strength, onset.astype(np.intp))


def joint_strength(z: Floats) -> float:
    """Joint significance at several engines (Stouffer 1949), at least that of any one."""
    positive = z[z > 0]
    if not len(positive):
        return 0.0
    return max(float(positive.max()), float(positive.sum() / np.sqrt(len(positive))))


def with_alternative(suspicion: Suspicion, set_aside: Sequence[Suspicion]) -> Suspicion:
    """`suspicion` with the costliest of those set aside for the same engines as alternative."""
    others = [each for each in set_aside if set(each.rows) & set(suspicion.rows)]
    others = [each for each in others if each.cause is not suspicion.cause]
    if suspicion.alternative is not None or not others:
        return suspicion
    worst = max(others, key=lambda each: float(each.cost_seconds.sum()))
    return replace(suspicion, alternative=Alternative(worst.cause, worst.evidence[0].text))
