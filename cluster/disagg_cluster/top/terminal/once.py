"""The view printed once, as lines or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

from disagg_cluster.top.sources.look_source import LookSource
from disagg_cluster.top.view.making import view_of
from disagg_cluster.top.view.recollection import Recollection
from disagg_cluster.top.view.values import TerminalView

# GPU accounts advance every five seconds.
LONGEST_WAIT_SECONDS = 6.5
_STEP_SECONDS = 0.5


def look_once(source: LookSource, sleep: Callable[[float], None] = time.sleep) -> TerminalView:
    """The view at once, or after the next commit if a single reading has no GPU time.

    Args:
        source: Read at least twice, unless it has past readings.
        sleep: Waits.
    """
    recollection = Recollection()
    remember_first(source, recollection)
    waited = 0.0
    while not recollection.knows_of_late and waited < LONGEST_WAIT_SECONDS:
        sleep(_STEP_SECONDS)
        waited += _STEP_SECONDS
        recollection.remember(source.read())
    return view_of(source.title, source.links, recollection)


def remember_first(source: LookSource, recollection: Recollection) -> None:
    """Take the first reading of a source, and its past ones."""
    for past in source.past():
        recollection.recall(past)
    if (earlier := source.earlier()) is not None:
        recollection.remember(earlier)
    recollection.remember(source.read())


def as_json(view: TerminalView) -> str:
    """All values of the view; null for unknown ones."""
    return json.dumps(asdict(view), indent=2)
