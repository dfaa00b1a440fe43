"""The load that came since a moment, in blocks, as one path."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.plan.model_demand import BLOCK_SECONDS

_LONGEST_SECONDS = 3600.0
"""Of what is longer ago nothing is settled: a planner was away, or Prometheus."""


def came_since(history: LoadHistory, since_seconds: float) -> LoadPaths | None:
    """Whole blocks up to the last that is known; None before one has ended. A gap is no load."""
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
    came = [np.nan_to_num(each.values[first : first + steps])[None, :] for each in drivers]
    start_seconds = requests.start_seconds + first * step
    return LoadPaths(start_seconds, step, *came).in_blocks(width * step)
