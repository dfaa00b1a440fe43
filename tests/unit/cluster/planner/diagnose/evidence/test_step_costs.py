"""Steps against expectation: the noise of sums over a sample of steps."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.step_costs import sampled_deviation

CALM = np.tile([0.02, -0.02], 8)


def test_outlying_blocks_of_one_engine_widen_the_deviation_of_all_its_peers() -> None:
    levels = np.stack([CALM, CALM, CALM, CALM])
    levels[0, [3, 7, 12]] += 0.4

    wild, alone = sampled_deviation(levels, np.array([0, 0, 0, 1]))[[1, 3]]

    assert alone == pytest.approx(0.04 / np.sqrt(2))
    assert wild > 2 * alone


def test_a_single_change_does_not_widen_the_deviation() -> None:
    changed = CALM + np.where(np.arange(16) >= 11, 0.7, 0.0)

    assert sampled_deviation(changed[None], np.array([0])) == pytest.approx(0.04 / np.sqrt(2))


def test_engines_without_steps_have_no_deviation() -> None:
    assert sampled_deviation(np.full((2, 9), np.nan), np.array([0, 1])) == pytest.approx([0.0, 0.0])
