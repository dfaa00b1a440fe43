"""What time was used for in which no engine held the device (accounting A5, A6)."""

from __future__ import annotations

from disagg_exporter.model import Reason, Use


def uses_of(
    reason: Reason, active_ns: int, quiet_ns: int, observed: bool
) -> tuple[tuple[Use, Reason, int], ...]:
    """Say where unheld time goes: (use, reason, length) for its active and its quiet part."""
    match reason:
        case Reason.STARTING | Reason.DRAINING:
            return ((Use.IDLE, reason, active_ns + quiet_ns),)
        case Reason.NO_DAEMON:
            return ((Use.UNOBSERVED, reason, active_ns + quiet_ns),)
        case Reason.NO_RECORD if observed:
            return (
                (Use.UNATTRIBUTED, Reason.NO_RECORD, active_ns),
                (Use.IDLE, Reason.NO_REQUEST, quiet_ns),
            )
        case Reason.NO_RECORD:
            return ((Use.UNOBSERVED, Reason.NO_RECORD, active_ns + quiet_ns),)
        case Reason.NO_ENGINE if not observed:
            return ((Use.UNOBSERVED, Reason.NO_READING, active_ns + quiet_ns),)
        case _:
            return (
                (Use.UNATTRIBUTED, Reason.STRANGER, active_ns),
                (Use.IDLE, reason, quiet_ns),
            )
