"""Slow steps that mix prompts and tokens, where hardly any others are seen."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.causes.slow_steps import slowness_by_kind
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, Rows
from disagg_exporter.model import Role

ONSET, SLOW = 6, 0.45


@dataclass(frozen=True)
class Fleet:
    """Three mixed engines, by block; from the onset on the first takes no steps without prompts."""

    in_onset_block: float

    def rows_of(self, role: Role) -> Rows:
        return np.arange(3) if role is Role.MIXED else np.arange(0)

    def changed(self, name: str, rows: Rows) -> SimpleNamespace:
        levels = np.zeros((3, 10))
        if name == "mixed_slowness":
            levels[:, ONSET + 1 :] = SLOW
            levels[:, ONSET] = self.in_onset_block
        if name == "pure_slowness":
            levels[0, ONSET:] = np.nan
        return SimpleNamespace(levels=levels[rows])


@pytest.mark.parametrize("in_onset_block", [0.08, 0.4])
def test_mixed_steps_are_slow_though_most_of_the_block_they_began_in_was_before(
    in_onset_block: float,
) -> None:
    view = cast("ModelView", Fleet(in_onset_block))

    mixed, pure = slowness_by_kind(view, np.array([0]), ONSET)

    assert mixed > 0.35
    assert pure == pytest.approx(0.0)
