"""The cases to forecast: series, origins, horizons."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.forecast.kinds import Floats, kinds

TRACES = Path(__file__).parent / "traces"
HORIZONS_MINUTES = (5, 30, 60, 360, 1440)
DAY_SECONDS = 86_400
_COLUMNS = {"prompt": "prompt_tokens_per_s", "output": "output_tokens_per_s"}
_FILE = re.compile(r"(.+)__(\d+)s")


@dataclass(frozen=True, slots=True)
class Case:
    """One series, the origins of its forecasts, and the horizons at which they are scored."""

    name: str
    recorded: bool
    step_seconds: int
    values: Floats
    origins: tuple[int, ...]
    horizons: tuple[tuple[int, int], ...]

    @property
    def longest(self) -> int:
        """Return the longest horizon, in steps."""
        return max(steps for _, steps in self.horizons)


def cases(origins: int, traces: Path = TRACES) -> Iterator[Case]:
    """Yield the recorded traces, then the made-up kinds, except those too short for any horizon."""
    for name, recorded, step, values in _series(traces):
        horizons = tuple(
            (minutes, round(minutes * 60 / step))
            for minutes in HORIZONS_MINUTES
            if step <= minutes * 60
            and _origins(len(values), step, round(minutes * 60 / step), origins)
        )
        if horizons:
            longest = max(steps for _, steps in horizons)
            at = _origins(len(values), step, longest, origins)
            yield Case(name, recorded, step, values, at, horizons)


def _series(traces: Path) -> Iterator[tuple[str, bool, int, Floats]]:
    for path in sorted(traces.glob("*.csv")):
        named = _FILE.fullmatch(path.stem)
        if named is None:
            raise SystemExit(f"{path}: a trace is named NAME__<seconds>s.csv")
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for signal, column in _COLUMNS.items():
            values = np.array([float(row[column] or 0) for row in rows])
            yield f"{named[1]} {named[2]} s {signal}", True, int(named[2]), values
    for name, step, prompt, output in kinds():
        yield f"{name} {step} s prompt", False, step, prompt
        yield f"{name} {step} s output", False, step, output


def _origins(length: int, step_seconds: int, horizon: int, count: int) -> tuple[int, ...]:
    """Return origins spread evenly over the last two thirds; none below six horizons of length."""
    day = DAY_SECONDS // step_seconds
    first = max(20, length // 3, 3 * day if length >= 6 * day else 0)
    last = length - horizon
    if last - first < 4 or length < 6 * horizon:
        return ()
    spread = np.linspace(first, last, min(count, last - first + 1)).astype(int)
    return tuple(int(each) for each in np.unique(spread))
