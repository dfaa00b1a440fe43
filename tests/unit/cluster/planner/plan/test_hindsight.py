from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.bounds import GpuOffer
from disagg_cluster.planner.plan.hindsight import HeldEngines, Hindsight, hindsight
from disagg_cluster.planner.plan.schedule import PlanTiming
from disagg_cluster.planner.plan.worker_option import WorkerOption
from disagg_exporter.model import Role
from support.plan_demands import BLOCK, NOW, OUTPUT, PAIR, PROMPT, options

_OFFER = GpuOffer("A", price_per_hour=2.0, idle_watts=100.0)


def past(load: list[float], longer_output: float = 1.0) -> LoadPaths:
    rates = np.array([load])
    return LoadPaths(NOW, BLOCK, rates, rates * PROMPT, rates * OUTPUT * longer_output)


def judged(
    load: LoadPaths,
    prefill: int,
    decode: int,
    of: tuple[WorkerOption, ...] = PAIR,
    offers: tuple[GpuOffer, ...] = (_OFFER,),
) -> Hindsight | UndecidedCapacity:
    held = [
        HeldEngines(option, np.full(load.steps, count))
        for option, count in zip(of, (prefill, decode), strict=True)
    ]
    return hindsight(load, RequestMix(1.0, 1.0, 1.0), held, offers, PlanTiming(300.0))


def found(load: LoadPaths, prefill: int, decode: int) -> Hindsight:
    told = judged(load, prefill, decode)
    assert isinstance(told, Hindsight)
    return told


def test_idle_gpus_are_told_in_hours_energy_and_money() -> None:
    told = found(past([0.0] * 12), 3, 2).present

    assert told.idle_gpu_hours == told.gpu_hours == 5.0
    assert told.idle_kilowatt_hours == pytest.approx(0.5)
    assert told.idle_money == pytest.approx(10.0)
    assert told.minutes_over_target == 0.0


def test_energy_and_money_that_nobody_knows_are_not_told() -> None:
    told = judged(past([1.0] * 12), 3, 2, offers=(GpuOffer("A"),))

    assert isinstance(told, Hindsight)
    assert (told.present.idle_kilowatt_hours, told.present.idle_money) == (None, None)


def test_a_wrong_split_of_enough_gpus_is_put_right() -> None:
    """Prefill had GPUs to spare while decode was short."""
    load = past([20.0] * 12, longer_output=8.0)
    told = found(load, 12, 1)

    assert told.present.minutes_over_target == 60.0
    assert told.best_static.minutes_over_target == 0.0
    assert told.best_static.gpu_hours <= told.present.gpu_hours
    ((_, prefill, _), (_, decode, _)) = told.best_static.engines
    assert prefill < 12
    assert decode > 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.0, 100.0), min_size=1, max_size=24),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_the_best_split_is_never_worse_than_the_present_one(
    load: list[float], prefill: int, decode: int
) -> None:
    told = found(past(load), prefill, decode)

    assert told.best_static.minutes_over_target <= told.present.minutes_over_target
    assert told.best_static.gpu_hours <= told.present.gpu_hours + 1e-9
    assert told.following.minutes_over_target == 0.0


def test_what_follows_the_load_holds_less_than_what_is_enough_all_day() -> None:
    told = found(past([5.0] * 60 + [80.0] * 12 + [5.0] * 60), 12, 6)

    assert told.best_static.minutes_over_target == 0.0
    assert told.following.gpu_hours < told.best_static.gpu_hours


def test_engines_of_which_nothing_is_known_are_not_judged() -> None:
    told = judged(past([5.0] * 3), 1, 1, options(targets=Targets(0.05, 0.05)))

    assert isinstance(told, UndecidedCapacity)


def test_what_was_held_must_be_told_for_each_step() -> None:
    held = [HeldEngines(PAIR[0], np.array([1]))]

    with pytest.raises(ValueError, match="each of its steps"):
        hindsight(past([1.0] * 3), RequestMix(1.0, 1.0, 1.0), held, (), PlanTiming(300.0))


def test_mixed_engines_have_one_role() -> None:
    option = WorkerOption(Role.MIXED, PAIR[0].costs, PAIR[0].targets)
    load = past([5.0] * 12)
    told = hindsight(
        load,
        RequestMix(1.0, 1.0, 1.0),
        [HeldEngines(option, np.full(12, 9))],
        (_OFFER,),
        PlanTiming(300.0),
    )

    assert isinstance(told, Hindsight)
    assert told.best_static.gpu_hours < told.present.gpu_hours
