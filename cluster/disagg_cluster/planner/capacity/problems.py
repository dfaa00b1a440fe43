"""Input checks that report all problems at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def not_in_range(
    values: Mapping[str, float], low: float = 0.0, high: float = math.inf, *, above: bool = False
) -> list[str]:
    """Report values that are not finite numbers from `low` (`above`: beyond it) to `high`."""
    expected = f"{'above' if above else 'from'} {low:g}" + (
        f" to {high:g}" if high < math.inf else ""
    )
    return [
        f"{name} is {value}, not a number {expected}"
        for name, value in values.items()
        if not (math.isfinite(value) and low <= value <= high) or (above and value == low)
    ]


def refuse(problems: Sequence[str]) -> None:
    """Raise `ValueError` with all problems, if there are any."""
    if problems:
        raise ValueError("; ".join(problems))
