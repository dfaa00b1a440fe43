from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds
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
    least: int = 0,
) -> Hindsight | UndecidedCapacity:
    held = [
        HeldEngines(option, np.full(load.steps, count))
        for option, count in zip(of, (prefill, decode), strict=True)
    ]
    return hindsight(
        load, RequestMix(1.0, 1.0, 1.0), held, PlanBounds(offers, least), PlanTiming(300.0)
    )


def found(load: LoadPaths, prefill: int, decode: int) -> Hindsight:
    outcome = judged(load, prefill, decode)
    assert isinstance(outcome, Hindsight)
    return outcome


def test_idle_gpus_are_reported_in_hours_energy_and_money() -> None:
    outcome = found(past([0.0] * 12), 3, 2).present

    assert outcome.idle_gpu_hours == outcome.gpu_hours == 5.0
    assert outcome.idle_kilowatt_hours == pytest.approx(0.5)
    assert outcome.idle_money == pytest.approx(10.0)
    assert outcome.minutes_over_target == 0.0


@pytest.mark.parametrize(("least", "present", "kept"), [(2, 5, 2), (3, 2, 2)])
def test_each_role_keeps_its_least_engines_at_any_load(least: int, present: int, kept: int) -> None:
    outcome = judged(past([0.0] * 12), present, present, least=least)

    assert isinstance(outcome, Hindsight)
    roles = (Role.PREFILL, Role.DECODE)
    assert outcome.best_static.engines == tuple((role, kept, kept) for role in roles)
    assert min(fewest for _, fewest, _ in outcome.following.engines) == least


def test_energy_and_money_are_absent_if_not_known() -> None:
    outcome = judged(past([1.0] * 12), 3, 2, offers=(GpuOffer("A"),))

    assert isinstance(outcome, Hindsight)
    assert (outcome.present.idle_kilowatt_hours, outcome.present.idle_money) == (None, None)


def test_the_best_split_corrects_a_wrong_split_of_enough_gpus() -> None:
    """Prefill has GPUs to spare while decode has too few."""
    load = past([20.0] * 12, longer_output=8.0)
    outcome = found(load, 12, 1)

    assert outcome.present.minutes_over_target == 60.0
    assert outcome.best_static.minutes_over_target == 0.0
    assert outcome.best_static.gpu_hours <= outcome.present.gpu_hours
    ((_, prefill, _), (_, decode, _)) = outcome.best_static.engines
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
    outcome = found(past(load), prefill, decode)

    assert outcome.best_static.minutes_over_target <= outcome.present.minutes_over_target
    assert outcome.best_static.gpu_hours <= outcome.present.gpu_hours + 1e-9
    assert outcome.following.minutes_over_target == 0.0


def test_following_the_load_holds_less_than_the_best_fixed_split() -> None:
    outcome = found(past([5.0] * 60 + [80.0] * 12 + [5.0] * 60), 12, 6)

    assert outcome.best_static.minutes_over_target == 0.0
    assert outcome.following.gpu_hours < outcome.best_static.gpu_hours


def test_engines_without_a_known_capacity_are_not_judged() -> None:
    outcome = judged(past([5.0] * 3), 1, 1, options(targets=Targets(0.05, 0.05)))

    assert isinstance(outcome, UndecidedCapacity)


def test_held_engines_are_required_for_each_step() -> None:
    held = [HeldEngines(PAIR[0], np.array([1]))]

    with pytest.raises(ValueError, match="each of its steps"):
        hindsight(
            past([1.0] * 3), RequestMix(1.0, 1.0, 1.0), held, PlanBounds(()), PlanTiming(300.0)
        )


def test_mixed_engines_have_one_role() -> None:
    option = WorkerOption(Role.MIXED, PAIR[0].costs, PAIR[0].targets)
    load = past([5.0] * 12)
    outcome = hindsight(
        load,
        RequestMix(1.0, 1.0, 1.0),
        [HeldEngines(option, np.full(12, 9))],
        PlanBounds((_OFFER,)),
        PlanTiming(300.0),
    )

    assert isinstance(outcome, Hindsight)
    assert outcome.best_static.gpu_hours < outcome.present.gpu_hours
