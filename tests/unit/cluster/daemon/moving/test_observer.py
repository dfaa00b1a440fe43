"""What is seen of a worker that moves: its books, who still needs it, and who sits on its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.daemon.moving.observer import MoveObserver
from disagg_cluster.lifecycle.reassignment.progress import (
    Patience,
    Reassignment,
    SwitchAnswer,
    WorkerSight,
)
from disagg_cluster.lifecycle.state import (
    LaunchCommand,
    Lifecycle,
    WorkerIdentity,
    WorkerState,
)
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_cluster.supervisor.worker_spec import WorkerSnapshot, WorkerSpec
from disagg_cluster.switching.drained import FETCHED_FROM, UNKNOWN_ROUTE
from disagg_exporter.model import (
    EngineAccount,
    EnginePage,
    ForeignWork,
    Histogram,
    Method,
    Phase,
    Role,
    ServingCounts,
    Snapshot,
    StepTotals,
)

S = 1_000_000_000
MOVE = Reassignment("r", "d0", Role.PREFILL, Role.DECODE, 0, 0, Patience())
ROLES = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE}


def page(running: float = 0, waiting: float = 0, ended: float = 0, t_ns: int = 2 * S) -> EnginePage:
    counts = ServingCounts(duration=Histogram((1.0,), (ended, ended), 0.0))
    return EnginePage("vllm", t_ns, running=running, waiting=waiting, serving=counts)


def account(method: Method, elapsed_ns: tuple[int, int, int, int]) -> EngineAccount:
    booked = {(Role.DECODE, Phase.DECODE): 3.0, (Role.DECODE, Phase.PREFILL): 1.0}
    booked[Role.PREFILL, Phase.PREFILL] = 40.0
    told = StepTotals(elapsed_ns=elapsed_ns)
    return EngineAccount("d0", Role.DECODE, "m", "", None, method, booked, {}, told)


@dataclass
class Seen:
    """A node with two prefill workers and a decode worker, as it is told to stand."""

    pages: dict[str, EnginePage] = field(default_factory=dict)
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0, 0.0, 0))
    router: Any = None
    lives: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workers = [
            {"name": name, "engine": "standin", "role": role.value, "model": "m", "port": 9000 + n}
            for n, (name, role) in enumerate(ROLES.items())
        ]
        config = from_mapping({"devices": "cpu", "workers": workers}, "test")
        self.observer = MoveObserver(
            config,
            cast(Any, SimpleNamespace(supervisor=self, tag=self.tag)),
            self.pages.get,
            lambda: self.snapshot,
            lambda _url: (None, 0),
            self.router,
        )

    def tag(self, worker: str) -> WorkerIdentity:
        return WorkerIdentity(port=8000 + list(ROLES).index(worker))

    def snapshots(self) -> list[Any]:
        return [self.snapshot_of(name, role) for name, role in ROLES.items()]

    def snapshot_of(self, name: str, role: Role) -> WorkerSnapshot:
        spec = WorkerSpec(
            name, LaunchCommand((), {}), Path("/l"), ProbeTarget(8000, "m"), RestartPolicy()
        )
        life = Lifecycle(
            **{"state": WorkerState.READY, "generation": 1, **self.lives.get(name, {})}
        )
        tag = WorkerIdentity(role=role, gpus=(f"GPU-{name}",), model_name="m")
        return WorkerSnapshot(spec, life, tag, 7, "healthy")

    def seconds(self) -> tuple[Any, bool]:
        sight = self.see()
        return sight.phase_seconds, sight.tells_phases

    def see(self, move: Reassignment = MOVE, *drained: str) -> WorkerSight:
        return self.observer.of(move, (SwitchAnswer.NONE, ""), asked=True, drained=drained)


def test_phase_seconds_have_a_fixed_order_whatever_the_method() -> None:
    """A process that has not reported yet has no method; earlier seconds are not its work."""
    seen, past = Seen(), (2 * S, 30 * S, S, 0)
    for method, tells in ((Method.NONE, False), (Method.STEPS, True), (Method.ROLE, False)):
        seen.snapshot = Snapshot(0, 0.0, 0, engine_accounts=(account(method, past),))

        assert seen.seconds() == (((31.0, 33.0), (3.0, 4.0)), tells)


def test_without_an_account_there_are_no_phase_seconds() -> None:
    assert Seen().seconds() == (None, False)


def test_a_prefill_engine_is_busy_until_requests_waiting_on_decode_have_ended() -> None:
    seen = Seen()
    seen.pages |= {"p0": page(), "d0": page(running=2, waiting=5, ended=10)}
    assert seen.observer.remaining("p0", Role.PREFILL, S) == FETCHED_FROM
    seen.pages["d0"] = page(running=2, waiting=9, ended=14, t_ns=3 * S)
    assert seen.observer.remaining("p0", Role.PREFILL, S)

    seen.pages["d0"] = page(running=2, waiting=9, ended=15, t_ns=4 * S)

    assert not seen.observer.remaining("p0", Role.PREFILL, S)


def test_two_drained_prefill_engines_become_idle_together() -> None:
    seen = Seen()
    seen.pages |= {"p0": page(), "p1": page()}
    idle: dict[str, bool] = {}
    for n in range(2):
        seen.pages["d0"] = page(running=2, waiting=5, ended=10 + 9 * n, t_ns=(2 + n) * S)
        idle = {n: not seen.observer.remaining(n, Role.PREFILL, S) for n in ("p0", "p1")}

    assert idle == {"p0": True, "p1": True}


def test_a_decode_engine_is_idle_once_it_runs_no_request() -> None:
    seen = Seen()
    seen.pages |= {"d0": page()}

    assert not seen.observer.remaining("d0", Role.DECODE, S)
    seen.pages["d0"] = page(running=1)
    assert seen.observer.remaining("d0", Role.DECODE, S)


def test_no_engine_is_idle_while_the_engines_of_the_router_are_unknown() -> None:
    router = SimpleNamespace(present=None)
    seen = Seen({"d0": page()}, router=router)

    assert seen.observer.remaining("d0", Role.DECODE, S) == UNKNOWN_ROUTE
    assert seen.observer.routed_as("d0") is Role.UNKNOWN
    router.present = {}
    assert not seen.observer.remaining("d0", Role.DECODE, S)
    assert seen.observer.routed_as("d0") is None


def test_an_adopted_engine_is_sought_at_the_router_where_it_listens() -> None:
    """Not where the node file lets its next process listen: a move would cut its requests."""
    seen = Seen()
    listens, will_listen = seen.tag("d0").url, "http://127.0.0.1:9002"
    seen = Seen(router=SimpleNamespace(present={listens: Role.DECODE, will_listen: Role.PREFILL}))

    assert seen.observer.routed_as("d0") is Role.DECODE


LEAVES = replace(MOVE, worker="p0")


@pytest.mark.parametrize(
    ("lives", "drained", "served"),
    [
        ({}, (), True),
        ({"p1": {"state": WorkerState.BACKOFF}}, (), False),
        ({"p1": {"up": False, "failed_probes": 2}}, (), False),
        ({"p1": {"up": False, "failed_probes": 1}}, (), True),
        ({"p1": {"up": False, "paused_ns": S}}, (), False),
        # It does its work, though too busy to answer.
        ({"p1": {"up": False, "left_alone": True}}, (), True),
        ({}, ("p1",), False),
        ({"p1": {"state": WorkerState.STARTING}}, (), False),
        # A daemon that has just begun has not probed those that it adopted.
        ({"p1": {"state": WorkerState.STARTING, "served": True}}, (), True),
        ({"p0": {"state": WorkerState.BACKOFF}}, (), True),
    ],
)
def test_a_worker_is_needed_where_it_is_once_no_peer_serves_there(
    lives: dict[str, dict[str, Any]], drained: tuple[str, ...], served: bool
) -> None:
    needed = Seen(lives=lives).see(LEAVES, *drained).needed

    why = "m would be left without prefill: no other such worker is ready"
    assert needed == ("" if served else why)


def test_foreign_processes_are_named_only_if_they_hold_much_gpu_memory() -> None:
    seen = Seen()
    works = (ForeignWork("GPU-d0", 0.0, 2 << 30), ForeignWork("GPU-p0", 0.0, 64 << 20))
    unknown = ForeignWork("GPU-p1", 0.5, None)
    seen.snapshot = Snapshot(0, 0.0, 0, foreign_work=(*works, unknown))

    assert seen.observer.constraints().strangers == {
        "d0": "processes of no engine of this node hold 2.0 GiB on GPU-d0"
    }


def test_peers_are_the_ready_workers_of_the_other_role_that_answer_first() -> None:
    assert Seen().observer.peers("p0", Role.PREFILL) == ("d0",)
    assert Seen().observer.peers("d0", Role.DECODE) == ("p0", "p1")
    assert Seen(lives={"p0": {"up": False}}).observer.peers("d0", Role.DECODE) == ("p1", "p0")
    assert Seen(lives={"p0": {"paused_ns": S}}).observer.peers("d0", Role.DECODE) == ("p1", "p0")
