from __future__ import annotations

import pytest
from tests.unit.cluster.planner.capacity.test_pools import CHAT, COSTS, POOLS, TARGETS

from disagg_cluster.planner.capacity.engine_pools import engine_pool
from disagg_exporter.model import Role


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.MIXED])
def test_the_pool_of_a_role_has_the_capacity_of_that_role(role: Role) -> None:
    pool = engine_pool(role, COSTS, CHAT, TARGETS, 0.0)

    assert pool.capacity(4) == POOLS[str(role)](COSTS, CHAT, TARGETS, 4)


def test_a_role_that_serves_no_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="serve no requests"):
        engine_pool(Role.UNKNOWN, COSTS, CHAT, TARGETS, 0.0)
