"""Slowness by an engine's own cost model that has lasted for as long as was observed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.causes import prompt_work
from disagg_cluster.planner.diagnose.causes.prompt_work import own_or_fitted_slowness
from disagg_cluster.planner.diagnose.causes.suspicion import Adverse
from disagg_cluster.planner.diagnose.causes.waits import Waits
from disagg_cluster.planner.diagnose.evidence.engine_changes import Changed
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_cluster.planner.diagnose.evidence.series_window import Floats
from disagg_cluster.planner.diagnose.evidence.shifts import shift_of

NOT_SLOW = Adverse(np.zeros(2), np.zeros(2), np.zeros(2, dtype=np.intp))


def slowness(levels: Floats, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The slowness found at two engines with the same cost models, whose waits are not longer."""
    monkeypatch.setattr(prompt_work, "giants", lambda _view, _rows: (0.0, 0))
    both = np.stack([levels, levels])

    def changed(name: str, rows: Rows) -> Changed:
        found = both if name == "own_slowness" else np.full_like(both, np.nan)
        # Peers are alike: a little apart, by chance.
        return Changed(found[rows], shift_of(found[rows]), np.full(len(rows), 0.01), rows * 0.0)

    view = cast("ModelView", SimpleNamespace(changed=changed))
    blocks = both.shape[1]
    waits = cast("Waits", SimpleNamespace(rows=np.arange(2), onset=np.full(2, blocks)))
    return own_or_fitted_slowness(view, waits, NOT_SLOW).size.round(2).tolist()


def test_engines_that_were_slow_in_nearly_all_of_the_window_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = np.array([0.42, 0.38, 0.45, 0.36, 0.4, 0.44, 0.37, 0.41, 0.39])

    assert slowness(levels, monkeypatch) == [0.4, 0.4]


def test_a_model_that_is_off_for_the_last_moments_shows_no_slow_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = np.array([0.09, 0.17, 0.16, 0.25, 0.24, 0.29, 0.19, 0.41, 0.31])

    assert slowness(levels, monkeypatch) == [0.0, 0.0]
