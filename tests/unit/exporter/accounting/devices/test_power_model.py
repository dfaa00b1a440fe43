"""Energy divided by the power that each phase was observed to draw (accounting A10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.devices.energy import EnergyLedger
from disagg_exporter.accounting.devices.power_model import (
    COLUMNS,
    LAGS_NS,
    LEAST_WINDOWS,
    PowerModel,
)
from disagg_exporter.model import Use
from support.measured_power import MeteredGpu, PoweredStep, alternating_load, mixed_load

SECONDS = 300.0


def _decode_at(watts: float, load: Iterator[PoweredStep]) -> Iterator[PoweredStep]:
    """The same load, but decode draws this."""
    for each in load:
        decodes = each.use is Use.DECODE
        yield replace(each, joules=each.seconds * watts) if decodes else each


@pytest.mark.parametrize("idle_share", [0.0, 0.5])
@pytest.mark.parametrize("prefill_share", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_learned_power_divides_the_energy_within_one_point(
    prefill_share: float, idle_share: float
) -> None:
    gpu = MeteredGpu(noise=0.1, seed=2)
    gpu.run(mixed_load(prefill_share, idle_share, SECONDS, 2))
    accounted, true = gpu.shares()

    assert accounted == pytest.approx(true, abs=0.01)


def test_decode_at_lower_power_than_prefill_is_not_accounted_by_time() -> None:
    """Of equal times: 71 % of the energy is prefill's, by time alone it would be 50."""
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


@pytest.mark.parametrize("lag_seconds", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("each_seconds", [0.3, 0.5, 1.0])
def test_a_lagging_counter_does_not_shift_energy_between_phases(
    each_seconds: float, lag_seconds: float
) -> None:
    """Prefill at 1000 W and decode at 400 W alternate, each for about that long."""
    gpu = MeteredGpu(noise=0.05, lag_seconds=lag_seconds)
    gpu.run(alternating_load(SECONDS, each_seconds, 0.3, 1))
    accounted, true = gpu.shares()

    assert gpu.ledger.power.lag_ns == pytest.approx(lag_seconds * 1e9)
    learned = gpu.ledger.power.by_use()
    assert learned[Use.PREFILL] == pytest.approx(1000, rel=0.05)
    assert learned[Use.DECODE] == pytest.approx(400, rel=0.1)
    assert accounted == pytest.approx(true, abs=0.03)


@pytest.mark.parametrize("idle_share", [0.0, 0.5])
@pytest.mark.parametrize("prefill_share", [0.1, 0.5, 0.9])
def test_learned_power_divides_the_energy_of_a_lagging_counter(
    prefill_share: float, idle_share: float
) -> None:
    gpu = MeteredGpu(noise=0.1, lag_seconds=0.3)
    gpu.run(mixed_load(prefill_share, idle_share, SECONDS, 1))
    accounted, true = gpu.shares()

    assert accounted == pytest.approx(true, abs=0.03)
    assert sum((gpu.ledger.microjoules or {}).values()) == gpu.committed_microjoules


@pytest.mark.parametrize("lag_seconds", [0.0, 0.3])
def test_strictly_periodic_phases_leave_their_power_undetermined(lag_seconds: float) -> None:
    """No lag, and a lag of one period with the phases swapped, give the same readings."""
    gpu = MeteredGpu(noise=0.05, lag_seconds=lag_seconds)
    gpu.run(alternating_load(SECONDS, 0.3, 0.0, 1))
    accounted, _ = gpu.shares()

    assert gpu.ledger.power.lag_ns is None
    assert gpu.ledger.power.by_use() == {}
    assert accounted > 0.4  # swapped, it would be 0.29; by time alone, 0.5


def test_learned_power_is_kept_by_the_next_daemon() -> None:
    gpu = MeteredGpu(noise=0.1, lag_seconds=0.3)
    gpu.run(mixed_load(0.5, 0.3, SECONDS, 1))

    after = EnergyLedger()
    after.resume(gpu.ledger.checkpoint())

    assert after.power.lag_ns == gpu.ledger.power.lag_ns
    assert after.power.by_use() == pytest.approx(gpu.ledger.power.by_use(), rel=0.02)


def test_a_leap_of_the_counter_is_not_learned_from_but_accounted_for() -> None:
    """A hundred thousand joules at once, before anything was predicted."""
    gpu = MeteredGpu(noise=0.05)
    load = list(_decode_at(400, mixed_load(0.5, 0.2, SECONDS, 1)))
    load[20] = replace(load[20], joules=1e5)
    gpu.run(iter(load))
    learned = gpu.ledger.power.by_use()

    assert learned[Use.DECODE] == pytest.approx(400, rel=0.05)
    assert sum((gpu.ledger.microjoules or {}).values()) == gpu.committed_microjoules


def _under(limit_watts: float, load: Iterator[PoweredStep]) -> Iterator[PoweredStep]:
    """The same load, but nothing draws more than a limit."""
    for each in load:
        joules = min(each.joules, each.seconds * limit_watts)
        yield replace(each, joules=joules, limit_watts=limit_watts)


@pytest.mark.parametrize(("before_watts", "after_watts"), [(500.0, 1200.0), (1200.0, 500.0)])
def test_what_was_learned_under_another_power_limit_is_forgotten(
    before_watts: float, after_watts: float
) -> None:
    """Without that the old watts would hold for more than half an hour."""
    load = mixed_load(0.5, 0.2, SECONDS, 1)
    gpu = MeteredGpu(noise=0.05)
    gpu.run(chain(_under(before_watts, load), _under(after_watts, mixed_load(0.5, 0.2, 100.0, 2))))
    fresh = MeteredGpu(noise=0.05)
    fresh.run(_under(after_watts, mixed_load(0.5, 0.2, SECONDS, 2)))

    assert gpu.ledger.power.by_use() == pytest.approx(fresh.ledger.power.by_use(), rel=0.05)
    assert gpu.ledger.power.by_use()
    assert sum((gpu.ledger.microjoules or {}).values()) == gpu.committed_microjoules


def test_a_power_limit_that_changed_while_no_daemon_ran_is_seen() -> None:
    gpu, again = MeteredGpu(noise=0.05), MeteredGpu(noise=0.05)
    gpu.run(_under(1200.0, mixed_load(0.5, 0.2, SECONDS, 1)))
    again.ledger.resume(gpu.ledger.checkpoint())
    assert again.ledger.power.by_use()

    again.run(_under(500.0, mixed_load(0.5, 0.2, 10.0, 2)), since_seconds=2 * SECONDS)

    assert again.ledger.power.by_use() == {}


def test_equal_powers_are_divided_by_time() -> None:
    """Learned power is no better than time there."""
    gpu = MeteredGpu(noise=0.1)
    gpu.run(replace(each, joules=each.seconds * 700) for each in mixed_load(0.5, 0.0, SECONDS, 1))

    assert gpu.ledger.power.by_use() == {}


def test_a_constant_mix_does_not_determine_the_power_of_its_phases() -> None:
    model = PowerModel()
    seconds = np.zeros((1000, 4))
    seconds[:, COLUMNS[Use.PREFILL]] = seconds[:, COLUMNS[Use.DECODE]] = 0.05
    model.learn(_at_all_lags(seconds), np.full(1000, 70.0), None)
    model.learn(_at_all_lags(seconds), np.full(1000, 70.0), None)

    assert model.by_use() == {}


def _at_all_lags(seconds: np.ndarray) -> np.ndarray:
    """The same uses whatever the lag."""
    return np.repeat(seconds[None], len(LAGS_NS), axis=0)


def test_no_power_is_given_before_enough_windows_were_predicted() -> None:
    """Two powers without any noise: the error is not what delays the result."""
    model, seconds = PowerModel(), np.zeros((1, 4))
    said = []
    for window in range(2 * LEAST_WINDOWS):
        seconds[0] = 0
        seconds[0, window % 2] = 0.25
        joules = np.array([250.0 if window % 2 else 100.0])
        model.learn(_at_all_lags(seconds), joules, None)
        said.append(model.by_use())

    assert said[:LEAST_WINDOWS] == [{}] * LEAST_WINDOWS
    assert said[-1] == pytest.approx({Use.PREFILL: 400, Use.DECODE: 1000}, rel=0.15)


def test_an_absurd_reading_does_not_change_the_learned_power() -> None:
    gpu = MeteredGpu(noise=0.05)
    gpu.run(mixed_load(0.5, 0.2, SECONDS, 1))
    learned = gpu.ledger.power
    before = learned.by_use()
    seconds = np.zeros((1, 4))
    seconds[0, COLUMNS[Use.DECODE]] = 0.25
    learned.learn(_at_all_lags(seconds), np.array([1e9]), 180.0)

    assert learned.by_use() == pytest.approx(before, rel=0.02)


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
        model.learn(_at_all_lags(each[:, :4]), each[:, 4], baseline)
        if model.watts is not None:
            assert all(0 < watts < float("inf") for watts in model.watts)
