"""The view printed once, as lines or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

from disagg_cluster.top.sources.reading_source import ReadingSource
from disagg_cluster.top.view.building import view_of
from disagg_cluster.top.view.reading_history import ReadingHistory
from disagg_cluster.top.view.values import TerminalView

# GPU accounts advance every five seconds.
LONGEST_WAIT_SECONDS = 6.5
_STEP_SECONDS = 0.5


def read_once(source: ReadingSource, sleep: Callable[[float], None] = time.sleep) -> TerminalView:
    """The view at once, or after the next commit if a single reading has no GPU time.

    Args:
        source: Read at least twice, unless it has past readings.
        sleep: Waits.
    """
    readings = ReadingHistory()
    read_first(source, readings)
    waited = 0.0
    while not readings.has_recent_use and waited < LONGEST_WAIT_SECONDS:
        sleep(_STEP_SECONDS)
        waited += _STEP_SECONDS
        readings.add(source.read())
    return view_of(source.title, source.links, readings)


def read_first(source: ReadingSource, readings: ReadingHistory) -> None:
    """Take the first reading of a source, and its past ones."""
    for past in source.past():
        readings.add_past(past)
    if (earlier := source.earlier()) is not None:
        readings.add(earlier)
    readings.add(source.read())


def as_json(view: TerminalView) -> str:
    """All values of the view; null for unknown ones."""
    return json.dumps(asdict(view), indent=2)
