"""Default forecast horizons, and how a horizon is written.

Imports nothing, because help texts and shell completion need it to load fast.
"""

from __future__ import annotations

HORIZONS_SECONDS = (300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
ORIGINS = 24
"""Default number of past moments that a back-test forecasts from."""


def duration(seconds: float) -> str:
    """Format a horizon: now, 5m, 6h, 2d."""
    if seconds == 0:
        return "now"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if (seconds > size and seconds % size == 0) or (seconds == size and unit != "d"):
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
