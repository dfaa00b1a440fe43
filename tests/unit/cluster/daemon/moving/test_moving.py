"""Which engines the router is given, and in which role."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

from disagg_cluster.daemon.moving.composition import Moving, RouterAccess
from disagg_cluster.lifecycle.state import Lifecycle, WorkerIdentity, WorkerState
from disagg_cluster.nodefile import from_mapping
from disagg_exporter.model import Phase, Role, RouterEngine
from support.children import PYTHON

READY = Lifecycle(state=WorkerState.READY)


def moving(
    serves: dict[str, WorkerIdentity], shown: list[tuple[RouterEngine, ...]]
) -> tuple[Moving, Any]:
    """Return the moves of a node whose processes serve so, and its configuration."""
    roles = {"p0": "prefill", "p1": "prefill", "d0": "decode"}
    workers = [
        {"name": name, "engine": "standin", "role": role, "model": "m", "port": 9000 + n}
        for n, (name, role) in enumerate(roles.items())
    ]
    router = {"python": PYTHON[0], "port": 9100, "membership": "live"}
    config = from_mapping({"devices": "cpu", "workers": workers, "router": router}, "test")
    supervisor = SimpleNamespace(tag=serves.__getitem__, life=lambda _name: READY)
    access = RouterAccess(lambda: 1, lambda: None, shown.append)
    whole = Moving(
        config,
        cast(Any, None),
        cast(Any, None),
        cast(Any, None),
        cast(Any, SimpleNamespace(supervisor=supervisor, tag=serves.__getitem__)),
        page_of=lambda _name: None,
        snapshot=lambda: None,
        router=access,
        switched=lambda _name: None,
        changed=lambda: None,
        log=logging.getLogger(__name__),
    )
    return whole, config


def test_an_adopted_engine_gets_requests_of_the_role_that_it_serves_not_of_the_file() -> None:
    """The file made p1 a prefill worker of n; its process was started as decode of m."""
    served = WorkerIdentity(role=Role.DECODE, model_name="m")
    prefill = WorkerIdentity(role=Role.PREFILL, model_name="n")
    shown: list[tuple[RouterEngine, ...]] = []
    whole, config = moving({"p0": prefill, "p1": served, "d0": served}, shown)

    given = {member.url: (member.role, member.model_name) for member in whole._members()}
    whole.happened()

    urls = {worker.name: worker.url for worker in config.workers}
    assert given == {
        urls["p0"]: (Role.PREFILL, "n"),
        urls["p1"]: (Role.DECODE, "m"),
        urls["d0"]: (Role.DECODE, "m"),
    }
    assert {each.name: each.phase for each in shown[-1]} == {
        "p0": Phase.PREFILL,
        "p1": Phase.DECODE,
        "d0": Phase.DECODE,
    }
