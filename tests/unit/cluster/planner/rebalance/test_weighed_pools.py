"""The measured use of pools, extrapolated to other loads and numbers of engines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_cluster.planner.rebalance.weighed_pools import WeighedPools
from disagg_exporter.model import Role

BLOCKS = 12


def pools(
    split: RoleSplit, used: dict[Role, float], step_floor: float, decode: float = 4.0
) -> WeighedPools:
    needs = SplitNeeds(
        np.full((2, BLOCKS), 3), np.full((2, BLOCKS), round(decode)), 300.0, step_floor
    )
    return WeighedPools(split, needs, MoveCost(360.0), used)


def batch_under(load: float, floor: float) -> float:
    """Little's law: the batch as a share of a full one, which lengthens its own steps."""
    batch = 0.0
    for _ in range(5000):
        batch = load * (floor + (1 - floor) * batch)
    return batch


@pytest.mark.parametrize("floor", [0.2, 0.3, 0.6, 1.0])
def test_decode_use_with_one_engine_less_includes_the_growth_of_batches(
    floor: float,
) -> None:
    for load in (0.2, 0.5, 0.7):
        there = pools(RoleSplit(3, 5), {Role.DECODE: batch_under(load, floor)}, floor)

        assert there.without_one(Role.DECODE) == pytest.approx(batch_under(load * 5 / 4, floor))
        assert there.filled(Role.DECODE) == pytest.approx(5 * load)


def test_a_quarter_more_load_nearly_doubles_batches_with_a_low_step_floor() -> None:
    there = pools(RoleSplit(3, 5), {Role.DECODE: 0.42}, 0.25)

    assert there.without_one(Role.DECODE) == pytest.approx(0.77, abs=0.01)


def test_prefill_use_is_proportional_to_load() -> None:
    there = pools(RoleSplit(4, 4), {Role.PREFILL: 0.6}, 0.25)

    assert there.without_one(Role.PREFILL) == pytest.approx(0.8)
    assert there.filled(Role.PREFILL) == pytest.approx(2.4)


def test_use_is_unknown_for_unmeasured_pools_and_without_the_last_engine() -> None:
    there = pools(RoleSplit(1, 4), {Role.PREFILL: 0.6}, 0.25)

    assert there.filled(Role.DECODE) is None
    assert there.used_at_most(Role.DECODE) is None
    assert there.without_one(Role.DECODE) is None
    assert there.without_one(Role.PREFILL) is None
    assert not there.is_full(Role.DECODE)
    assert not there.is_doubted(Role.DECODE)


def test_a_capacity_is_doubted_by_the_served_load_and_not_by_the_batch() -> None:
    """Half a batch is 4/5 of the load where a quarter of a step stays: 3.2 of 4 engines."""
    assert not pools(RoleSplit(4, 4), {Role.DECODE: 0.5}, 0.25, decode=5).is_doubted(Role.DECODE)
    assert pools(RoleSplit(4, 4), {Role.DECODE: 0.5}, 1.0, decode=5).is_doubted(Role.DECODE)
    assert pools(RoleSplit(4, 4), {Role.DECODE: 0.5}, 0.25, decode=6).is_doubted(Role.DECODE)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1.5), st.floats(0.05, 1), st.floats(1, 4), st.sampled_from(list(Role)[:2]))
def test_more_load_never_lowers_use_and_unchanged_load_keeps_it(
    used: float, floor: float, factor: float, role: Role
) -> None:
    there = pools(RoleSplit(4, 4), {role: used}, floor)

    same, more = there.used_at(role, 1.0), there.used_at(role, factor)
    assert same == pytest.approx(used)
    assert more is not None
    assert more >= used - 1e-9
