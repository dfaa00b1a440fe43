from __future__ import annotations

import random

import pytest

from disagg_exporter.attribution.cost_model.samples import SampleBins, StepWork


def test_similar_steps_share_one_cell_of_weighted_means() -> None:
    cells = SampleBins(memory_steps=10**9)
    cells.add(StepWork(0, 0, 40, 1100), 0.01, 1.0)
    cells.add(StepWork(0, 0, 40, 1200), 0.02, 3.0)
    cells.add(StepWork(500, 125_000, 40, 1000), 0.05, 1.0)

    alike, other = cells.means()

    assert (alike[0], alike[2]) == pytest.approx((4.0, 0.0175))
    assert alike[1] == pytest.approx(StepWork(0, 0, 40, 1175))
    assert other[1] == pytest.approx(StepWork(500, 125_000, 40, 1000))


def test_a_step_weighted_as_several_equals_several_steps() -> None:
    one_by_one, at_once = SampleBins(memory_steps=10**6), SampleBins(memory_steps=10**6)
    for cells, times, steps in ((one_by_one, 8, 1), (at_once, 1, 8)):
        cells.add(StepWork(100, 5000), 1.0, 1.0)
        for _ in range(times):
            cells.add(StepWork(0, 0, 5, 100), 0.5, 1.0, steps)

    for expected, found in zip(one_by_one.means(), at_once.means(), strict=True):
        assert found[0] == pytest.approx(expected[0], rel=1e-4)
        assert found[1] == pytest.approx(expected[1])
        assert found[2] == pytest.approx(expected[2])


def test_old_steps_decay_exponentially() -> None:
    """A step n steps back weighs e^(-n / memory)."""
    cells = SampleBins(memory_steps=1000)
    cells.add(StepWork(100, 5000), 1.0, 1.0)
    for _ in range(1000):
        cells.add(StepWork(0, 0, 5, 100), 1.0, 1.0)

    old, _ = cells.means()

    assert old[0] == pytest.approx(0.368, abs=0.002)


def test_weights_stay_bounded_over_a_long_run() -> None:
    cells = SampleBins(memory_steps=10)
    for number in range(5000):
        cells.add(StepWork(0, 0, 5, 100), number, 1.0)

    ((weight, work, seconds),) = cells.means()

    assert weight == pytest.approx(10)
    assert work == pytest.approx(StepWork(0, 0, 5, 100))
    assert seconds == pytest.approx(4989, abs=1)


def test_a_cell_not_observed_for_long_is_dropped() -> None:
    """At a hundred steps a second its weight would be 0 after a month."""
    cells = SampleBins(memory_steps=10)
    cells.add(StepWork(100, 5000), 1.0, 1.0)
    for _ in range(9000):
        cells.add(StepWork(0, 0, 5, 100), 0.5, 1.0)

    ((weight, work, seconds),) = cells.means()

    assert weight == pytest.approx(10)
    assert work == pytest.approx(StepWork(0, 0, 5, 100))
    assert seconds == pytest.approx(0.5)


def test_the_heaviest_cells_are_kept_when_there_are_too_many() -> None:
    cells, rng = SampleBins(memory_steps=10**6), random.Random(1)
    usual = StepWork(0, 0, 20, 5000)
    most = 0
    for _ in range(20_000):
        cells.add(usual, 0.01, 1.0)
        tokens = 10 ** rng.uniform(0, 6)
        cells.add(StepWork(tokens, tokens * 10 ** rng.uniform(0, 6)), 0.01, 1.0)
        most = max(most, len(cells))

    assert most <= 1200
    assert max(cells.means())[1] == pytest.approx(usual)
