"""Durations as Go writes them, because the web-config file is Go's."""

from __future__ import annotations

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")


def seconds_of(duration: str | int) -> float | None:
    """Seconds of `1m30s`, `100ms` or 0; None for what is no duration. A bare number is in ns."""
    if isinstance(duration, int):
        return duration * 1e-9 if duration >= 0 else None
    if duration in ("", "0"):
        return 0.0
    if _PART.sub("", duration):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))
