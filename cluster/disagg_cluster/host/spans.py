"""Durations as people read them, and instants as programs do."""

from __future__ import annotations

from datetime import UTC, datetime


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units: 3d 4h, 2h 5m, 1m 30s, 7s."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {whole % 60}s" if minutes else f"{whole}s"


def timestamp(seconds: float) -> str:
    """Return a Unix time in ISO 8601, to the second, with its zone."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
