"""One device's time cut into slices: who holds it, or why nobody does (accounting A3, A5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

NEVER_NS = 2**63
_new = tuple.__new__


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
    why_idle: dict[tuple[Reason | None, ...], Reason] = {}
    slices = []
    left_ns = start_ns
    while left_ns < end_ns:
        right_ns = end_ns
        holders: tuple[tuple[str, Work], ...] = ()
        for lane in lanes:
            if lane.until_ns <= left_ns:
                lane.go_to(left_ns)
            if lane.until_ns < right_ns:
                right_ns = lane.until_ns
            if lane.work is not None:
                holders += ((lane.engine, lane.work),)
        reason = Reason.NONE
        if not holders:
            known = tuple([lane.reason for lane in lanes])
            if known not in why_idle:
                why_idle[known] = _why_idle(engines, lanes)
            reason = why_idle[known]
        # Past the named constructor, which is slow: there are as many slices as steps.
        slices.append(_new(Slice, (left_ns, right_ns, holders, reason)))
        left_ns = right_ns
    return slices


class _Lane:
    """A lane's pieces, read once from left to right.

    `work` or `reason` is what holds at the present instant, until `until_ns`; where there is no
    piece both are None.
    """

    __slots__ = ("_next", "_pieces", "engine", "reason", "until_ns", "work")

    def __init__(self, engine: str, pieces: Sequence[Piece]) -> None:
        self.engine = engine
        self.until_ns = -NEVER_NS
        self.work: Work | None = None
        self.reason: Reason | None = None
        self._pieces = pieces
        self._next = 0

    def go_to(self, t_ns: int) -> None:
        """Go on to an instant; instants come in rising order."""
        self.work = self.reason = None
        while self._next < len(self._pieces):
            start_ns, end_ns, work, reason = self._pieces[self._next]
            if start_ns > t_ns:
                self.until_ns = start_ns
                return
            self._next += 1
            if end_ns > t_ns:
                self.work, self.reason, self.until_ns = work, reason, end_ns
                return
        self.until_ns = NEVER_NS


def _why_idle(engines: Mapping[str, Assignment], lanes: Sequence[_Lane]) -> Reason:
    """Return the reason that explains best why no engine holds the device."""
    reasons = {lane.engine: lane.reason for lane in lanes if lane.reason is not None}
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
