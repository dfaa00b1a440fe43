from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.cluster.planner.capacity.test_pools import CHAT, COSTS, POOLS, TARGETS

from disagg_cluster.planner.capacity.engines_needed import engines_needed
from disagg_cluster.planner.capacity.pool_capacity import (
    EngineNeed,
    PoolCapacity,
    UndecidedCapacity,
)
from disagg_cluster.planner.capacity.targets import Targets
from disagg_exporter.model import Role

ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED)


def need(role: Role, requests_per_second: float) -> EngineNeed:
    found = engines_needed(role, COSTS, CHAT.with_load(requests_per_second), TARGETS)
    assert isinstance(found, EngineNeed)
    return found


@pytest.mark.parametrize("role", ROLES)
def test_the_fewest_engines_that_serve_the_load_are_needed(role: Role) -> None:
    engines = need(role, 300.0).engines

    enough, short = (POOLS[str(role)](COSTS, CHAT, TARGETS, k) for k in (engines, engines - 1))
    assert isinstance(enough, PoolCapacity)
    assert isinstance(short, PoolCapacity)
    assert short.requests_per_second < 300.0 <= enough.requests_per_second


@pytest.mark.parametrize("role", ROLES)
def test_no_load_needs_no_engine(role: Role) -> None:
    assert need(role, 0.0).engines == 0


@pytest.mark.parametrize("role", ROLES)
def test_the_error_of_the_costs_becomes_an_interval_of_engines(role: Role) -> None:
    found = need(role, 1000.0)

    assert found.high is not None
    assert found.low < found.engines < found.high


def test_exact_costs_leave_no_interval() -> None:
    exact = replace(COSTS, relative_error=0.0)

    found = engines_needed(Role.PREFILL, exact, CHAT.with_load(500.0), TARGETS)

    assert isinstance(found, EngineNeed)
    assert found.low == found.engines == found.high


def test_a_target_that_no_number_of_engines_meets_is_undecided_and_says_why() -> None:
    found = engines_needed(Role.DECODE, COSTS, CHAT.with_load(5.0), Targets(1.0, 0.002))

    assert isinstance(found, UndecidedCapacity)
    assert "bound by itl" in found.reason


def test_a_target_that_slightly_slower_engines_never_meet_has_no_upper_end() -> None:
    step = COSTS.step_seconds(0, 0, 1, 1300) * 1.05

    found = engines_needed(Role.DECODE, COSTS, CHAT.with_load(5.0), Targets(1.0, step))

    assert isinstance(found, EngineNeed)
    assert found.high is None


def test_a_role_that_serves_no_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="serve no requests"):
        engines_needed(Role.UNKNOWN, COSTS, CHAT, TARGETS)
