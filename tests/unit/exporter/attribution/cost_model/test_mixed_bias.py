"""The mean error of predictions of mixed steps, beyond that of pure ones."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.mixed_bias import MixedBias

SECONDS = st.floats(1e-9, 1e6)
STEPS = st.lists(st.tuples(SECONDS, SECONDS, st.booleans()), max_size=50)


def _after(steps: list[tuple[float, float, bool]]) -> MixedBias:
    bias = MixedBias()
    for seconds, predicted_seconds, mixed in steps:
        bias.count(seconds, predicted_seconds, mixed=mixed)
    return bias


def test_mixed_steps_that_are_longer_than_predicted_are_biased_by_that() -> None:
    assert _after([(0.012, 0.01, True), (0.01, 0.01, False)] * 200).ratio == pytest.approx(0.2)
    assert _after([(0.008, 0.01, True), (0.01, 0.01, False)] * 200).ratio == pytest.approx(0.2)


def test_an_engine_that_is_slow_at_all_steps_has_no_bias() -> None:
    assert _after([(0.012, 0.01, True), (0.012, 0.01, False)] * 200).ratio == pytest.approx(0.0)


def test_mixed_steps_alone_are_compared_with_their_predictions() -> None:
    assert _after([(0.011, 0.01, True)] * 200).ratio == pytest.approx(0.1)


def test_an_engine_without_mixed_steps_has_no_bias() -> None:
    assert _after([(0.011, 0.01, False)] * 200).ratio == 0.0
    assert _after([]).ratio == 0.0


def test_noise_of_a_tenth_is_a_bias_of_a_few_hundredths() -> None:
    draw = Random(1)
    steps = [(draw.gauss(0.01, 0.001), 0.01, number % 2 == 0) for number in range(2000)]

    assert _after(steps).ratio < 0.03


def test_a_hung_step_counts_as_three_times_the_predicted() -> None:
    steps = [(0.01, 0.01, True)] * 1000

    assert _after([*steps, (600.0, 0.01, True)]).ratio == pytest.approx(0.02, rel=0.05)


def test_a_bias_is_forgotten_after_some_hundred_steps() -> None:
    biased, usual = [(0.012, 0.01, True)] * 300, [(0.01, 0.01, True)] * 300

    assert _after(biased + usual).ratio == pytest.approx(0.01, abs=0.001)


@given(STEPS)
def test_it_continues_after_a_restore(steps: list[tuple[float, float, bool]]) -> None:
    bias, restored = _after(steps), MixedBias()
    restored.restore(bias.save())
    for each in (bias, restored):
        each.count(0.02, 0.01, mixed=True)

    assert restored.ratio == bias.ratio
