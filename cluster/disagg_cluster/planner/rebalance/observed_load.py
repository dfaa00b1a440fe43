"""The observed load since a given time, in blocks, as one path."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.plan.model_demand import BLOCK_SECONDS

_LONGEST_SECONDS = 3600.0
"""Older load is not accounted: the planner or Prometheus was down."""


def load_since(history: LoadHistory, since_seconds: float) -> LoadPaths | None:
    """Whole blocks up to the last known step; None before one has ended. Gaps count as no load."""
    requests = history.requests
    if requests is None:
        return None
    step = requests.step_seconds
    width = max(1, round(BLOCK_SECONDS / step))
    since_seconds = max(since_seconds, requests.end_seconds - _LONGEST_SECONDS)
    first = max(0, int(np.ceil((since_seconds - requests.start_seconds) / step - 1e-9)))
    drivers = (requests, history.prompt_tokens, history.output_tokens)
    silent_seconds = max(each.silent_seconds for each in drivers)
    if silent_seconds >= _LONGEST_SECONDS:
        return None
    known = len(requests.values) - round(silent_seconds / step)
    steps = (known - first) // width * width
    if steps <= 0:
        return None
    observed = [np.nan_to_num(each.values[first : first + steps])[None, :] for each in drivers]
    start_seconds = requests.start_seconds + first * step
    return LoadPaths(start_seconds, step, *observed).in_blocks(width * step)
