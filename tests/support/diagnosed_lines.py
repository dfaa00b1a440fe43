"""A model's engines for most tests of its diagnosis, and the findings about them."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import SeriesWindow
from disagg_cluster.planner.diagnose.verdict.values import BottleneckFinding
from support.diagnosis_windows import Line, WindowMaker

TARGETS = Targets(2.0, 0.05)
PREFILL = tuple(Line(f"p{number}") for number in range(3))
DECODE = tuple(
    Line(f"d{number}", role="decode", requests=3.0, wait_seconds=0.06, transfers=3.0)
    for number in range(2)
)


def named(*lines: Line, **maker: object) -> tuple[BottleneckFinding, ...]:
    """Return the findings of one round over a window of these engines."""
    window = WindowMaker(**maker).make(lines)  # type: ignore[arg-type] # by name
    (found,), _ = diagnose(window, TARGETS)
    return found.findings


def without_late_waits(window: SeriesWindow, engine: str) -> SeriesWindow:
    """Return the window, with no request at an engine waiting longer in its last minute."""
    for series in window.of("disagg_engine_prefill_time_to_first_token_seconds_sum"):
        if series.labels["engine"] == engine:
            gained = np.diff(series.values, prepend=0.0)
            gained[-4:] = gained[:-12].mean()
            series.values[:] = np.cumsum(gained)
    return window
