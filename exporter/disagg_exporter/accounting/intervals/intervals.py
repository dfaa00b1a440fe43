"""One device's time cut into slices: who holds it, or why nobody does (accounting A3, A5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.timeline import CODES, REASONS, WORK, Pieces
from disagg_exporter.model import Assignment, EngineState, Reason, Role

# What explains an idle device best, when several engines share it.
PRECEDENCE = (
    Reason.NO_RECORD,
    Reason.HOST_GAP,
    Reason.KV_WAIT,
    Reason.NO_REQUEST,
    Reason.DRAINING,
    Reason.STARTING,
    Reason.NO_ENGINE,
)

NEVER_NS = 2**63
_UNHEARD = -1
"""In place of a reason's code: nothing is known of the engine there."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """A stretch of a device's time, cut wherever one of its engines' timelines changes.

    Slice k lies from `edges_ns[k]` to `edges_ns[k + 1]`. Each line of `held`, `prefill_share` and
    `dummy_share` is one lane, of the engine in `engines`: whether it holds the device in a slice,
    and with what work; who hold it share it equally. `reasons` are the codes of why nobody does.
    """

    edges_ns: NDArray[np.int64]
    engines: tuple[str, ...]
    held: NDArray[np.bool_]
    prefill_share: NDArray[np.float64]
    dummy_share: NDArray[np.float64]
    reasons: NDArray[np.int64]

    @property
    def lengths_ns(self) -> NDArray[np.int64]:
        """How long each slice is."""
        return np.diff(self.edges_ns)

    @property
    def busy(self) -> NDArray[np.bool_]:
        """Whether anybody holds the device in each slice."""
        return np.equal(self.reasons, WORK)


def role_of(engines: Mapping[str, Assignment]) -> Role:
    """Return a device's role: that of its ready engines, `mixed` if they differ, else `none`."""
    roles = {a.role for a in engines.values() if a.state is EngineState.READY}
    if not roles:
        return Role.NONE
    return roles.pop() if len(roles) == 1 else Role.MIXED


def model_of(engines: Mapping[str, Assignment]) -> tuple[str, str]:
    """Return the (model name, namespace) that all engines of a device share, else empty."""
    owners = {(a.model_name, a.engine_namespace) for a in engines.values()}
    return owners.pop() if len(owners) == 1 else ("", "")


def leaving(assignment: Assignment) -> Assignment:
    """Return what a device is told of an engine that is assigned to it no longer."""
    return Assignment(
        assignment.engine,
        assignment.role,
        assignment.devices,
        EngineState.GONE,
        assignment.since_ns,
    )


def cut(
    start_ns: int,
    end_ns: int,
    engines: Mapping[str, Assignment],
    lanes: Sequence[tuple[str, Pieces]],
    *,
    absent: bool = False,
) -> Intervals:
    """Cut [start, end) at every boundary of any engine's pieces.

    `lanes` are the frozen timelines of those that hold the device, each with its engine; where an
    engine has no piece it has not been heard. `absent`: no daemon ran, so that nobody knows why a
    device was not held.
    """
    bounds = [lane[side] for _, lane in lanes for side in ("start_ns", "end_ns")]
    edges = np.unique(np.concatenate([*bounds, [start_ns, end_ns]]))
    edges = edges[(edges >= start_ns) & (edges <= end_ns)]
    found = [_read(lane, edges[:-1]) for _, lane in lanes]
    reasons = np.array([lane[0] for lane in found]).reshape(len(lanes), len(edges) - 1)
    held = reasons == WORK
    names = tuple(engine for engine, _ in lanes)
    if absent:
        why = np.where(held.any(axis=0), WORK, CODES[Reason.NO_DAEMON])
    else:
        why = _why_idle(engines, names, reasons, held.any(axis=0))
    return Intervals(
        edges,
        names,
        held,
        np.array([lane[1] for lane in found]).reshape(held.shape),
        np.array([lane[2] for lane in found]).reshape(held.shape),
        why,
    )


def _read(
    lane: Pieces, starts_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return what a lane does from each of these instants on: reason, prefill and dummy share."""
    if not len(lane):
        unheard = np.full(len(starts_ns), _UNHEARD)
        return unheard, np.zeros(len(starts_ns)), np.zeros(len(starts_ns))
    at = np.searchsorted(lane["start_ns"], starts_ns, side="right") - 1
    there = (at >= 0) & (lane["end_ns"][at] > starts_ns)
    reasons = np.where(there, lane["reason"][at], _UNHEARD)
    return reasons, lane["prefill_share"][at], lane["dummy_share"][at]


def _why_idle(
    engines: Mapping[str, Assignment],
    names: Sequence[str],
    reasons: NDArray[np.int64],
    held: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return why nobody holds the device in each slice; `WORK` where somebody does."""
    why = np.full(len(held), WORK)
    idle = np.flatnonzero(~held)
    # Few cases differ: they are numbered, lane by lane, and each is judged once.
    cases = np.zeros(len(idle), np.int64)
    for lane in reasons:
        _, cases = np.unique(cases * (len(REASONS) + 1) + lane[idle], return_inverse=True)
    _, first, cases = np.unique(cases, return_index=True, return_inverse=True)
    judged = [_best_reason(engines, names, reasons[:, idle[place]]) for place in first]
    why[idle] = np.array([CODES[reason] for reason in judged], np.int64)[cases]
    return why


def _best_reason(
    engines: Mapping[str, Assignment], names: Sequence[str], codes: NDArray[np.int64]
) -> Reason:
    """Return the reason that explains best why no engine holds the device."""
    told = zip(names, codes.tolist(), strict=True)
    reasons = {name: REASONS[code] for name, code in told if code != _UNHEARD}
    found = []
    for name, assignment in engines.items():
        match assignment.state:
            case EngineState.STARTING:
                found.append(Reason.STARTING)
            case EngineState.DRAINING:
                found.append(Reason.DRAINING)
            case _:
                found.append(reasons.get(name, Reason.NO_RECORD))
    return min(found, key=PRECEDENCE.index, default=Reason.NO_ENGINE)
