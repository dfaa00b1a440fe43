"""Which engines the router is given, and in which role."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

from disagg_cluster.daemon.moving.composition import Moving, RouterAccess
from disagg_cluster.lifecycle.state import Lifecycle, WorkerIdentity, WorkerState
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.switching.members import membership_changes
from disagg_exporter.model import Phase, Role, RouterEngine
from support.children import PYTHON

READY = Lifecycle(state=WorkerState.READY)


def moving(serves: dict[str, WorkerIdentity], shown: list[tuple[RouterEngine, ...]]) -> Moving:
    """Return the moves of a node whose processes serve so."""
    roles = {"p0": "prefill", "p1": "prefill", "d0": "decode"}
    workers = [
        {"name": name, "engine": "standin", "role": role, "model": "m", "port": 9000 + n}
        for n, (name, role) in enumerate(roles.items())
    ]
    router = {"python": PYTHON[0], "port": 9100, "membership": "live"}
    config = from_mapping({"devices": "cpu", "workers": workers, "router": router}, "test")
    supervisor = SimpleNamespace(tag=serves.__getitem__, life=lambda _name: READY)
    access = RouterAccess(lambda: 1, lambda: None, shown.append)
    return Moving(
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


def test_an_adopted_engine_is_reached_where_it_listens_until_it_is_started_elsewhere() -> None:
    """The file gives d0 another port: nothing listens there before its next start."""
    old, new = (WorkerIdentity(role=Role.DECODE, port=port) for port in (7000, 9002))
    serves = dict.fromkeys(("p0", "p1"), WorkerIdentity(role=Role.PREFILL)) | {"d0": old}
    whole = moving(serves, [])
    membership = whole.membership
    assert membership is not None
    assert old.url in {member.url for member in whole._members()}

    serves["d0"] = new

    desired, present = whole._members(), {old.url: Role.DECODE}
    changes = membership_changes(desired, membership._ours, present)
    assert changes.leave == (old.url,)
    assert new.url in {member.url for member in changes.join}


def test_an_adopted_engine_gets_requests_of_the_role_that_it_serves_not_of_the_file() -> None:
    """The file made p1 a prefill worker of n; its process was started as decode of m."""
    serves = {
        "p0": WorkerIdentity(role=Role.PREFILL, model_name="n", port=9000),
        "p1": WorkerIdentity(role=Role.DECODE, model_name="m", port=9001),
        "d0": WorkerIdentity(role=Role.DECODE, model_name="m", port=9002),
    }
    shown: list[tuple[RouterEngine, ...]] = []
    whole = moving(serves, shown)

    given = {member.url: (member.role, member.model_name) for member in whole._members()}
    whole.happened()

    assert given == {each.url: (each.role, each.model_name) for each in serves.values()}
    assert {each.name: each.phase for each in shown[-1]} == {
        "p0": Phase.PREFILL,
        "p1": Phase.DECODE,
        "d0": Phase.DECODE,
    }
