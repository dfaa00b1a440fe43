"""Sixteen engines send 625 steps a second each to one daemon: how much is lost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.node.rig import ENGINES, Rig, running_rig

STEPS_PER_SECOND = 625.0 * ENGINES
_FLOOD_SECONDS = 20.0
# The last step is final after 6 s and its block committed within 5 more; longer on a busy machine.
_SETTLE_SECONDS = 90.0


def flooded() -> dict[str, float]:
    """Flood a daemon whose engines have a device each; compare its accounting with their own."""
    with (
        tempfile.TemporaryDirectory(prefix="bf-") as name,
        running_rig(Path(name), flood=True) as rig,
    ):
        rig.set_rate(STEPS_PER_SECOND)
        time.sleep(_FLOOD_SECONDS)
        rig.set_rate(0)
        return losses(_settled_page(rig), rig.device_weight)


def _settled_page(rig: Rig) -> Mapping[str, float]:
    """Wait until all received time is committed; return the page that shows it."""
    rested = time.time() + 1
    while time.time() < rested + _SETTLE_SECONDS:
        time.sleep(1)
        page = rig.page()
        if is_committed(page, rested):
            return page
    raise SystemExit("the daemon does not commit all time")


def is_committed(page: Mapping[str, float], until: float) -> bool:
    """Return whether all time before a moment is committed; a stale page shows no marks."""
    marks = [value for series, value in page.items() if "_watermark_timestamp" in series]
    return bool(marks) and min(marks) > until


def losses(page: Mapping[str, float], device_weight: float) -> dict[str, float]:
    """Return how much of what the engines sent a page lacks."""

    def total(name: str) -> float:
        return sum(value for series, value in page.items() if series.startswith(name + "{"))

    steps, lost = total("disagg_engine_steps_total"), total("disagg_lost_records_total")
    step_seconds = total("disagg_engine_step_seconds_total")
    accounted_seconds = total("disagg_engine_gpu_seconds_total") / device_weight
    return {
        "flood_steps_per_second": steps / _FLOOD_SECONDS,
        "flood_lost_records_percent": 100 * lost / steps,
        "flood_lost_seconds_percent": 100 * abs(step_seconds - accounted_seconds) / step_seconds,
        "flood_cut_seconds": total("disagg_span_cut_seconds_total"),
    }
