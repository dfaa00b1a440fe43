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

_NEVER_NS = 2**63


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
        holders: list[tuple[str, Work]] = []
        resting: list[Reason | None] = []
        for lane in lanes:
            work, reason, until_ns = lane.at(left_ns)
            if until_ns < right_ns:
                right_ns = until_ns
            if work is not None:
                holders.append((lane.engine, work))
            resting.append(reason)
        if holders:
            slices.append(Slice(left_ns, right_ns, tuple(holders), Reason.NONE))
        else:
            known = tuple(resting)
            if known not in why_idle:
                why_idle[known] = _why_idle(engines, lanes, known)
            slices.append(Slice(left_ns, right_ns, (), why_idle[known]))
        left_ns = right_ns
    return slices


class _Lane:
    """A lane's pieces, read once from left to right."""

    def __init__(self, engine: str, pieces: Sequence[Piece]) -> None:
        self.engine = engine
        self._pieces = pieces
        self._next = 0

    def at(self, t_ns: int) -> tuple[Work | None, Reason | None, int]:
        """Return work or reason at an instant and until when; instants come in rising order.

        Where there is no piece both are None.
        """
        pieces = self._pieces
        while self._next < len(pieces):
            start_ns, end_ns, work, reason = pieces[self._next]
            if end_ns > t_ns:
                return (work, reason, end_ns) if start_ns <= t_ns else (None, None, start_ns)
            self._next += 1
        return None, None, _NEVER_NS


def _why_idle(
    engines: Mapping[str, Assignment], lanes: Sequence[_Lane], resting: Sequence[Reason | None]
) -> Reason:
    """Return the reason that explains best why no engine holds the device."""
    reasons = {
        lane.engine: reason
        for lane, reason in zip(lanes, resting, strict=True)
        if reason is not None
    }
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
