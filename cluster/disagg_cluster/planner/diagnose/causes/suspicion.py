"""A cause that the evidence points to, with what it costs, before it is a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.diagnose.evidence.engine_changes import Changed
from disagg_cluster.planner.diagnose.evidence.model_view import Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import change_since
from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    Cause,
    Evidence,
    RemedyKind,
)
from disagg_exporter.model import Role

# A change against the own past is one from so many standard errors on, and so is being apart from
# peers. The first is the largest over all moments at which it may have begun.
OWN_Z, PEER_Z = 4.0, 4.0
# Together they are believed from less each.
_BOTH_Z, _JOINT_Z = 2.5, 6.0
# The same at a time that waits have told: something was then, and by so much the surer they are,
# the less is asked of what.
SINCE_Z, SURE_SINCE_Z, SURE_PEER_Z = 3.5, 2.7, 3.0
SURE_WAIT_Z = 8.0
# What began so few blocks before or after began then: both moments are estimates.
_NEAR_BLOCKS = 2
# Whose strength is this is believed at the second look.
LIKELY_Z = 4.6


@dataclass(frozen=True, slots=True)
class ActionAdvice:
    """Which action would help; `value` is that of a `set_…` action."""

    kind: RemedyKind
    value: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Suspicion:
    """A cause and the engines it befalls.

    `rows` are those of the model's view; `is_pool` says that it befalls the role as a whole.
    `cost_seconds` is by row of the view: what it adds to the wait of the requests there. `strength`
    is how many standard errors the evidence is away from chance.
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


@dataclass(frozen=True, slots=True, eq=False)
class Adverse:
    """By how much something is worse than it should be, as a logarithm from 0 up, by engine.

    `by_past` says whether the own past tells, else peers do. `onset` is the block it began in.
    """

    size: Floats
    z: Floats
    onset: Rows


def own_or_joint_z(changed: Changed) -> Floats:
    """How surely something is more than it was.

    Past and peers that say the same say it surer than either.
    """
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
    """What has become more than before, or is more than at peers.

    Args:
        changed: What is looked at.
        least_change: Smaller changes against the own past are none.
        least_apart: The same against peers, which are never quite alike; None: no peers are asked.
        since: By engine the block from which on requests wait longer, if they do, else the number
            of blocks: a change at that very time, or about it, needs less to be believed, because
            few others were chosen from.
        since_z: How sure that is, by engine.
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
        # Two that agree are likelier than the weaker of them.
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
    """How surely something befell several engines (Stouffer 1949): surer than any one of them."""
    told = z[z > 0]
    if not len(told):
        return 0.0
    return max(float(told.max()), float(told.sum() / np.sqrt(len(told))))


def with_alternative(suspicion: Suspicion, set_aside: Sequence[Suspicion]) -> Suspicion:
    """With what was set aside because this explains the same wait, if anything was."""
    others = [each for each in set_aside if set(each.rows) & set(suspicion.rows)]
    others = [each for each in others if each.cause is not suspicion.cause]
    if suspicion.alternative is not None or not others:
        return suspicion
    worst = max(others, key=lambda each: float(each.cost_seconds.sum()))
    return replace(suspicion, alternative=Alternative(worst.cause, worst.evidence[0].text))
