"""What a benchmark leaves behind: its table for the eye, its figures for whoever compares."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Figures = Mapping[str, float | None]


def finish(
    path: Path,
    figures: Figures,
    bars: Mapping[str, float],
    table: Callable[[Figures, Mapping[str, bool]], str],
    *,
    as_json: bool,
    **how: object,
) -> int:
    """Hold figures against their bars (the most they may be), write and print; 1 if one is missed.

    A figure that is None was not measured and misses nothing. `how` is what the run was told.
    """
    met = {key: value <= bar for key, bar in bars.items() if (value := figures[key]) is not None}
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        **how,
        "figures": figures,
        "bars": bars,
        "met": all(met.values()),
    }
    text = json.dumps(report, indent=2) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(text if as_json else table(figures, met))
    return 0 if all(met.values()) else 1
