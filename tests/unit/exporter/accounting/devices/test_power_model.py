"""Energy divided by the power that each phase was seen to draw (accounting A10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.accounting.devices.power_model import COLUMNS, LEAST_WINDOWS, PowerModel
from disagg_exporter.model import Use
from support.measured_power import MeteredGpu, PoweredStep, mixed_load

SECONDS = 300.0


def _decode_at(watts: float, load: Iterator[PoweredStep]) -> Iterator[PoweredStep]:
    """The same load, but decode draws this."""
    for each in load:
        decodes = each.use is Use.DECODE
        yield replace(each, joules=each.seconds * watts) if decodes else each


@pytest.mark.parametrize("idle_share", [0.0, 0.5])
@pytest.mark.parametrize("prefill_share", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_measured_watts_part_the_energy_within_three_points(
    prefill_share: float, idle_share: float
) -> None:
    for seed in (1, 2):
        gpu = MeteredGpu(noise=0.1, seed=seed)
        gpu.run(mixed_load(prefill_share, idle_share, SECONDS, seed))
        accounted, true = gpu.shares()

        assert accounted == pytest.approx(true, abs=0.01)


def test_decode_at_two_fifths_of_the_power_of_prefill_is_not_billed_by_time() -> None:
    """Of equal times: 71 % of the energy is prefill's, where time alone says 50."""
    gpu = MeteredGpu(noise=0.1)
    gpu.run(_decode_at(390, mixed_load(0.5, 0.2, SECONDS, 1)))
    accounted, true = gpu.shares()

    assert true > 0.68
    assert accounted == pytest.approx(true, abs=0.03)


def test_every_joule_between_first_and_last_reading_is_accounted_for() -> None:
    gpu = MeteredGpu(noise=0.1)
    gpu.run(mixed_load(0.5, 0.3, SECONDS, 3))

    assert gpu.ledger.power.watts is not None
    assert sum((gpu.ledger.microjoules or {}).values()) == gpu.committed_microjoules


def test_equal_powers_are_divided_by_time() -> None:
    """What is learned earns nothing there."""
    gpu = MeteredGpu(noise=0.1)
    gpu.run(replace(each, joules=each.seconds * 700) for each in mixed_load(0.5, 0.0, SECONDS, 1))

    assert gpu.ledger.power.by_use() == {}


def test_a_mix_that_never_changes_says_nothing_about_its_parts() -> None:
    model = PowerModel()
    seconds = np.zeros((1000, 4))
    seconds[:, COLUMNS[Use.PREFILL]] = seconds[:, COLUMNS[Use.DECODE]] = 0.05
    model.learn(seconds, np.full(1000, 70.0), None)
    model.learn(seconds, np.full(1000, 70.0), None)

    assert model.by_use() == {}


def test_nothing_is_said_before_enough_was_foreseen() -> None:
    """Two powers without any noise: it is not the error that holds it back."""
    model, seconds = PowerModel(), np.zeros((1, 4))
    for window in range(LEAST_WINDOWS):
        seconds[0] = 0
        seconds[0, window % 2] = 0.25
        model.learn(seconds.copy(), np.array([250.0 if window % 2 else 100.0]), None)
    before = model.by_use()
    for window in range(LEAST_WINDOWS):
        seconds[0] = 0
        seconds[0, window % 2] = 0.25
        model.learn(seconds.copy(), np.array([250.0 if window % 2 else 100.0]), None)

    assert before == {}
    assert model.by_use() == pytest.approx({Use.PREFILL: 400, Use.DECODE: 1000}, rel=0.15)


def test_an_absurd_reading_does_not_bend_what_was_learned() -> None:
    gpu = MeteredGpu(noise=0.05)
    gpu.run(mixed_load(0.5, 0.2, SECONDS, 1))
    learned = gpu.ledger.power
    before = learned.by_use()
    seconds = np.zeros((1, 4))
    seconds[0, COLUMNS[Use.DECODE]] = 0.25
    learned.learn(seconds, np.array([1e9]), 180.0)

    assert learned.by_use() == pytest.approx(before, rel=0.02)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(*(st.floats(0, 100) for _ in range(4)), st.floats(0, 1e9)),
        min_size=1,
        max_size=200,
    ),
    st.none() | st.floats(0, 1500),
)
def test_any_history_gives_finite_positive_watts_or_none(
    rows: list[tuple[float, ...]], baseline: float | None
) -> None:
    model = PowerModel()
    for each in np.array_split(np.array(rows), 7):
        model.learn(each[:, :4], each[:, 4], baseline)
        if model.watts is not None:
            assert all(0 < watts < float("inf") for watts in model.watts)
