"""Which engines tell how long requests wait there, which do not, and which are silent."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Flags
from disagg_cluster.planner.diagnose.evidence.shifts import LEAST_AFTER

_HALF_UP = 0.5


def telling(view: ModelView, rows: Rows) -> Flags:
    """Which engines have told lately how many first tokens there were, even if none."""
    counts = view.blocks("first_tokens", rows)[:, -LEAST_AFTER:]
    return np.asarray(np.isfinite(counts).any(axis=1))


def silent(view: ModelView, rows: Rows) -> Flags:
    """Which engines do not answer, or are not scraped any longer."""
    grid = view.changes.fleet.grid
    last_seconds = np.array([view.engines[row].last_seconds for row in rows], float)
    is_gone = grid.now_seconds - last_seconds > grid.gap_seconds
    with np.errstate(invalid="ignore"):
        return np.asarray(is_gone | (view.latest("up", rows) < _HALF_UP))


def untelling(view: ModelView, rows: Rows) -> Flags:
    """Which engines have been up for some blocks, not idle, and have told no wait meanwhile."""
    up = view.changes.fleet.readings.of("up")[view.fleet_rows[rows]]
    recent = up[:, -LEAST_AFTER * view.block_bins :]
    is_new = np.isfinite(up).any(axis=1) & ~np.isfinite(recent).all(axis=1)
    is_idle = view.recent("running", rows) + view.recent("waiting", rows) == 0
    return np.asarray(~(telling(view, rows) | silent(view, rows) | is_new | is_idle))
