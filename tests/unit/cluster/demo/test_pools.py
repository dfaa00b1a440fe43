from collections.abc import Mapping
from dataclasses import replace

import pytest

from disagg_cluster.demo.nodefile import WORKERS, demo_node_file
from disagg_cluster.demo.pools import PoolUrls, first_pools, pools_now
from disagg_cluster.nodefile import from_mapping
from disagg_exporter.model import Role, WorkerStatus
from support.served import engine_status
from support.snapshots import golden_snapshot

CONFIG = from_mapping(demo_node_file(range(9000, 9000 + WORKERS)), "the demo's node file")
ALL = first_pools(CONFIG)


def shown(roles: Mapping[str, Role], states: Mapping[str, str]) -> PoolUrls:
    workers = tuple(WorkerStatus(name, state, 0, None) for name, state in states.items())
    engines = tuple(engine_status(name, role, None) for name, role in roles.items())
    return pools_now(CONFIG, replace(golden_snapshot(), workers=workers, engines=engines))


def test_all_engines_take_requests_by_the_node_file_at_first() -> None:
    assert (len(ALL.prefill), len(ALL.decode)) == (4, 2)
    assert pools_now(CONFIG, None).or_else(ALL) == ALL


@pytest.mark.parametrize("state", ["starting", "draining", "failed"])
def test_engines_that_are_not_ready_take_no_requests(state: str) -> None:
    roles = {worker.name: worker.role for worker in CONFIG.workers}
    states = dict.fromkeys(roles, "ready") | {"prefill-3": state}

    assert shown(roles, states) == PoolUrls(ALL.prefill[:3], ALL.decode)


def test_an_engine_takes_requests_of_its_current_role() -> None:
    roles = {worker.name: worker.role for worker in CONFIG.workers} | {"prefill-3": Role.DECODE}

    pools = shown(roles, dict.fromkeys(roles, "ready"))

    assert pools == PoolUrls(ALL.prefill[:3], (ALL.prefill[3], *ALL.decode))
