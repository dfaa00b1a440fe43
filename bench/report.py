"""The report of a benchmark: a printed table, figures as JSON, and where they were measured."""

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
    table: Callable[[Figures, Mapping[str, bool]], str] | None = None,
    *,
    as_json: bool,
    **how: object,
) -> int:
    """Compare figures with their bars (upper limits), write and print them; 1 if one is missed.

    A figure that is None was not measured and misses no bar. `how` are the options of the run.
    Without a `table` the figures are listed, each beside its bar.
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
    if as_json:
        sys.stdout.write(text)
    else:
        sys.stdout.write(table(figures, met) if table else _listed(figures, bars, met))
    return 0 if all(met.values()) else 1


def processor() -> str:
    """Return the name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def _listed(figures: Figures, bars: Mapping[str, float], met: Mapping[str, bool]) -> str:
    width = max(map(len, figures)) + 1
    lines = [f"{'':<{width}}{'measured':>10}{'bar':>8}"]
    for key, value in figures.items():
        bar = f"{bars[key]:>8g}" if key in bars else " " * 8
        if value is None:
            lines.append(f"{key:<{width}}{'-':>10}{bar}  not measured")
            continue
        verdict = "" if key not in bars else "met" if met[key] else "MISSED"
        lines.append(f"{key:<{width}}{value:>10.3f}{bar}  {verdict}".rstrip())
    return "\n".join(lines) + "\n"
