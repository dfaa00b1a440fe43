"""Which numbers a learned model may hold: finite, and small enough for sums of them to be so."""

from __future__ import annotations

from collections.abc import Iterable

MOST_SECONDS = 1e6
"""Of one step, or of a stretch: eleven days."""
MOST_COUNT = 1e12
"""Of tokens, requests or steps at once."""


def check_range(name: str, values: Iterable[float], least: float, most: float) -> None:
    """Raise `ValueError` unless all values are finite numbers within a range, ends included."""
    for value in values:
        if not least <= value <= most:
            raise ValueError(f"{name} is {value}, expected {least:g} to {most:g}")
