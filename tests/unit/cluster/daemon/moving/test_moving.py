"""Which engines the router is given, and in which role."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from disagg_cluster.daemon.moving.composition import Moving, RouterAccess
from disagg_cluster.lifecycle.state import Lifecycle, WorkerIdentity, WorkerState
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.switching.members import membership_changes
from disagg_exporter.model import (
    EnginePage,
    Phase,
    Role,
    RouterCounts,
    RouterEngine,
    RouterPage,
)
from support.children import PYTHON

READY = Lifecycle(state=WorkerState.READY)


def moving(
    serves: dict[str, WorkerIdentity],
    shown: list[tuple[RouterEngine, ...]],
    *,
    life: Lifecycle = READY,
    page: EnginePage | None = None,
    router_page: Callable[[], RouterPage | None] = lambda: None,
) -> Moving:
    """Return the moves of a node whose processes serve so."""
    roles = {"p0": "prefill", "p1": "prefill", "d0": "decode"}
    workers = [
        {"name": name, "engine": "standin", "role": role, "model": "m", "port": 9000 + n}
        for n, (name, role) in enumerate(roles.items())
    ]
    router = {"python": PYTHON[0], "port": 9100, "membership": "live"}
    config = from_mapping({"devices": "cpu", "workers": workers, "router": router}, "test")
    supervisor = SimpleNamespace(tag=serves.__getitem__, life=lambda _name: life)
    access = RouterAccess(lambda: 1, router_page, shown.append)
    return Moving(
        config,
        cast(Any, None),
        cast(Any, None),
        cast(Any, None),
        cast(Any, SimpleNamespace(supervisor=supervisor, tag=serves.__getitem__)),
        page_of=lambda _name: page,
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


S = 1_000_000_000
IDLE = EnginePage("vllm", 3 * S, running=0.0, waiting=0.0)


def test_a_drain_before_a_restart_is_not_over_while_the_router_has_requests_for_the_worker() -> (
    None
):
    """It chooses both engines of a request before the prompt is computed."""
    tag = WorkerIdentity(role=Role.DECODE, port=7000)
    serves = dict.fromkeys(("p0", "p1", "d0"), tag)
    pages = [
        RouterPage(t_ns=3 * S, totals=RouterCounts(), pending_by_engine={tag.url: count})
        for count in (1.0, 0.0)
    ]
    drains = Lifecycle(state=WorkerState.DRAINING, since_ns=S, restarting=True)
    whole = moving(serves, [], life=drains, page=IDLE, router_page=lambda: pages[0])
    assert whole.membership is not None

    assert whole.drain_page("d0") is None, "the router does not tell its engines"
    whole.membership._present = {tag.url: Role.DECODE}
    pages.reverse()
    assert whole.drain_page("d0") is None, "the router has not let it go"
    whole.membership._present = {}
    pages.reverse()
    assert whole.drain_page("d0") is None, "one request is on its way"
    pages.reverse()
    assert whole.drain_page("d0") == IDLE


def test_a_drain_waits_for_no_router_that_does_not_run_or_does_not_route_the_worker() -> None:
    tag = WorkerIdentity(role=Role.DECODE, port=7000)
    serves = dict.fromkeys(("p0", "p1", "d0"), tag)
    drains = Lifecycle(state=WorkerState.DRAINING, since_ns=S)
    whole = moving(serves, [], life=drains, page=IDLE)
    assert whole._router is not None

    whole._router = replace(whole._router, pid=lambda: None)
    assert whole.drain_page("d0") == IDLE

    serves["d0"] = WorkerIdentity(role=Role.MIXED, port=7000)
    whole._router = replace(whole._router, pid=lambda: 1)
    assert whole.drain_page("d0") == IDLE
