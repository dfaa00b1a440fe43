"""Short formats for numbers; a hyphen for unknown values."""

from __future__ import annotations

import time

ABSENT = "-"
_GIB = 1 << 30
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_ROUNDED_UP = 0.9995
"""From this part of a unit on, three digits show a whole one."""


def percent(ratio: float | None) -> str:
    """A ratio as a percentage."""
    return ABSENT if ratio is None else f"{100 * ratio:.0f}%"


def count(value: float | None) -> str:
    """A count."""
    if value is None:
        return ABSENT
    for unit, letter in _UNITS:
        if value >= 9999.5 and value >= _ROUNDED_UP * unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.0f}"


def rate(value: float | None) -> str:
    """A rate per second; small values keep one decimal."""
    return f"{value:.1f}" if value is not None and 0 < value < 9.95 else count(value)


def latency(seconds: float | None) -> str:
    """A latency."""
    if seconds is None:
        return ABSENT
    if seconds < 0.00995:
        return f"{1000 * seconds:.1f}ms"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 99.5 else f"{seconds:.0f}s"


def elapsed(seconds: float | None) -> str:
    """An elapsed time in one unit."""
    if seconds is None:
        return ""
    for unit, letter in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{letter}"
    return f"{seconds:.0f}s"


def window(seconds: float) -> str:
    """The length of a time window."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def memory(used_bytes: float | None, total_bytes: float | None) -> str:
    """Used and total memory in GiB."""
    if used_bytes is None:
        return ABSENT
    used = f"{used_bytes / _GIB:.0f}"
    return f"{used}/{total_bytes / _GIB:.0f}G" if total_bytes else f"{used}G"


def watts(power: float | None) -> str:
    """Electrical power."""
    return ABSENT if power is None else f"{power:.0f}W"


def clock(timestamp: float) -> str:
    """A time of day, in UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(timestamp))
