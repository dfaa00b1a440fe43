"""One device's time cut into slices: who holds it, or why nobody does (accounting A3, A5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from disagg_exporter.accounting.entry import Piece
from disagg_exporter.accounting.phase import Work
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


class Slice(NamedTuple):
    """A stretch that `holders` (engine, work) share equally, or that is idle for `reason`."""

    start_ns: int
    end_ns: int
    holders: tuple[tuple[str, Work], ...]
    reason: Reason


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
    pieces: Mapping[str, Sequence[Sequence[Piece]]],
) -> list[Slice]:
    """Cut [start, end) at every boundary of any engine's pieces.

    `pieces` holds, per engine, the frozen timeline of each of its lanes; where an engine has no
    piece it has not been heard.
    """
    lanes = [_Lane(engine, lane) for engine in engines for lane in pieces.get(engine, ())]
    bounds = {t_ns for lane in lanes for piece in lane.pieces for t_ns in piece[:2]}
    edges = {start_ns, end_ns, *(t_ns for t_ns in bounds if start_ns < t_ns < end_ns)}
    slices = []
    for left, right in pairwise(sorted(edges)):
        holders: list[tuple[str, Work]] = []
        reasons: dict[str, Reason] = {}
        for lane in lanes:
            piece_here = lane.at(left)
            if piece_here is None:
                continue
            if piece_here.work is not None:
                holders.append((lane.engine, piece_here.work))
            else:
                reasons[lane.engine] = piece_here.reason
        reason = Reason.NONE if holders else _why_idle(engines, reasons)
        slices.append(Slice(left, right, tuple(holders), reason))
    return slices


class _Lane:
    """A lane's pieces, read once from left to right."""

    def __init__(self, engine: str, pieces: Sequence[Piece]) -> None:
        self.engine = engine
        self.pieces = pieces
        self._next = 0

    def at(self, t_ns: int) -> Piece | None:
        """Return the piece that covers the instant; instants come in rising order."""
        while self._next < len(self.pieces) and self.pieces[self._next].end_ns <= t_ns:
            self._next += 1
        if self._next == len(self.pieces) or self.pieces[self._next].start_ns > t_ns:
            return None
        return self.pieces[self._next]


def _why_idle(engines: Mapping[str, Assignment], reasons: Mapping[str, Reason]) -> Reason:
    """Return the reason that explains best why no engine holds the device."""
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
