"""A device's engines over time, and the periods without a daemon above its watermark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from disagg_exporter.model import Assignment, EngineState, Role

MOST_ABSENCES = 64
"""Absences of one device kept until committed; beyond this number the earliest are joined."""

NEVER_NS = 2**63


class DeviceAssignments:
    """The engines of a device at its watermark, and the known changes after it, in order."""

    def __init__(self, engines: Iterable[Assignment] = (), changes: Iterable[Assignment] = ()):
        self.committed = {assignment.engine: assignment for assignment in engines}
        self.changes = list(changes)

    def add(self, assignment: Assignment) -> None:
        """Add a change of an engine's state or role, from its `since_ns` on."""
        self.changes.append(assignment)
        self.changes.sort(key=lambda change: change.since_ns)

    def commit_until(self, watermark_ns: int) -> None:
        """Apply the changes up to a watermark."""
        while self.changes and self.changes[0].since_ns <= watermark_ns:
            _apply(self.committed, self.changes.pop(0))

    def latest(self) -> Mapping[str, Assignment]:
        """Return the device's engines after all known changes."""
        current = dict(self.committed)
        for assignment in self.changes:
            _apply(current, assignment)
        return current

    def awaited(self, watermark_ns: int) -> Mapping[str, int]:
        """Return the engines whose timelines this device has yet to read, and up to when.

        An engine that has left is awaited up to that time: its work here may not be known yet.
        """
        until_ns = dict.fromkeys(self.committed, NEVER_NS)
        for assignment in self.changes:
            gone = assignment.state is EngineState.GONE
            if assignment.engine in until_ns or not gone:
                until_ns[assignment.engine] = assignment.since_ns if gone else NEVER_NS
        return {name: ns for name, ns in until_ns.items() if ns > watermark_ns}


class Absences:
    """Periods in which no daemon ran: why a device was not held there is unknown."""

    def __init__(self, stretches: Iterable[tuple[int, int]] = ()) -> None:
        self.stretches: list[tuple[int, int]] = []
        for start_ns, end_ns in sorted(stretches):
            if self.stretches and start_ns <= self.stretches[-1][1]:
                self.stretches[-1] = self.stretches[-1][0], max(self.stretches[-1][1], end_ns)
            elif end_ns > start_ns:
                self.stretches.append((start_ns, end_ns))
        over = max(len(self.stretches) - MOST_ABSENCES, 0)
        if over:
            self.stretches[: over + 1] = [(self.stretches[0][0], self.stretches[over][1])]

    def at(self, watermark_ns: int, end_ns: int) -> tuple[bool, int]:
        """Return whether a watermark is in an absence, and until when (at most) that holds."""
        while self.stretches and self.stretches[0][1] <= watermark_ns:
            del self.stretches[0]
        if not self.stretches:
            return False, end_ns
        from_ns, until_ns = self.stretches[0]
        absent = from_ns <= watermark_ns
        return absent, min(end_ns, until_ns if absent else from_ns)


def role_of(engines: Mapping[str, Assignment]) -> Role:
    """Return a device's role: that of its ready engines, `mixed` if they differ, else `none`."""
    roles = {a.role for a in engines.values() if a.state is EngineState.READY}
    if not roles:
        return Role.NONE
    return roles.pop() if len(roles) == 1 else Role.MIXED


def model_of(engines: Mapping[str, Assignment]) -> tuple[str, str]:
    """Return the (model name, namespace) that all engines of a device share, else empty."""
    owners = {owner_of(assignment) for assignment in engines.values()}
    return owners.pop() if len(owners) == 1 else ("", "")


def owner_of(assignment: Assignment) -> tuple[str, str]:
    """Return the (model name, namespace) of an engine."""
    return assignment.model_name, assignment.engine_namespace


def leaving(assignment: Assignment) -> Assignment:
    """Return the assignment of an engine for a device that it has left."""
    engine, role, devices = assignment.engine, assignment.role, assignment.devices
    return Assignment(engine, role, devices, EngineState.GONE, assignment.since_ns)


def _apply(engines: dict[str, Assignment], assignment: Assignment) -> None:
    if assignment.state is EngineState.GONE:
        engines.pop(assignment.engine, None)
    else:
        engines[assignment.engine] = assignment
