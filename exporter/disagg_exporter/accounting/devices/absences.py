"""Stretches of time in which no daemon ran: nobody knows why a device was not held there."""

from __future__ import annotations

from collections.abc import Iterable

MOST_ABSENCES = 64
"""Stretches of one device that wait to be committed; beyond it the earliest are joined."""


def without_gaps(absences: Iterable[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return stretches (start, end) in order, those that overlap or are too many made one."""
    joined: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(absences):
        if joined and start_ns <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end_ns)
        elif end_ns > start_ns:
            joined.append((start_ns, end_ns))
    over = max(len(joined) - most, 0)
    if over:
        joined[: over + 1] = [(joined[0][0], joined[over][1])]
    return joined
