"""A cause that the evidence points to, with what it costs, before it is a finding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.evidence.engine_changes import Changed
from disagg_cluster.planner.diagnose.evidence.model_view import Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.verdict.values import Cause, Evidence, RemedyKind
from disagg_exporter.model import Role

# A change against the own past is one from so many standard errors on, and so is being apart from
# peers. The first is the largest over all moments at which it may have begun.
OWN_Z, PEER_Z = 5.0, 4.5


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


@dataclass(frozen=True, slots=True, eq=False)
class Adverse:
    """By how much something is worse than it should be, as a logarithm from 0 up, by engine.

    `by_past` says whether the own past tells, else peers do. `onset` is the block it began in.
    """

    size: Floats
    z: Floats
    onset: Rows


def adverse(
    changed: Changed,
    least_change: float,
    *,
    least_apart: float | None = None,
    sign: int = 1,
    own_z: float = OWN_Z,
    peer_z: float = PEER_Z,
) -> Adverse:
    """What has become worse than before, or is worse than at peers; `sign` is that of worse.

    Args:
        changed: What is looked at.
        least_change: Smaller changes against the own past are none.
        least_apart: The same against peers, which are never quite alike; None: no peers are asked.
        sign: -1 where less is worse.
        own_z: Standard errors from which on a change is one.
        peer_z: The same of being apart from peers.
    """
    shift = changed.shift
    change, z = sign * shift.change, sign * shift.z
    own = (z >= own_z) & (change >= least_change)
    size = np.where(own, change, 0.0)
    strength = np.where(own, z, 0.0)
    onset = np.where(own, shift.onset, 0)
    if least_apart is not None:
        apart, apart_z = sign * changed.apart, sign * changed.apart_z
        beside = (apart_z >= peer_z) & (apart >= least_apart) & ~own
        size = np.where(beside, apart, size)
        strength = np.where(beside, apart_z, strength)
    return Adverse(size, strength, onset.astype(np.intp))
