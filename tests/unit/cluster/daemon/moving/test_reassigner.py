"""What is done to a worker is written down before; what is found in the journal is gone on with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, cast

import pytest

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.control.messages import ReassignWorker
from disagg_cluster.control.views import RoleConstraints
from disagg_cluster.daemon.moving.engine_requests import EngineRequests
from disagg_cluster.daemon.moving.observer import MoveObserver
from disagg_cluster.daemon.moving.reassigner import Reassigner
from disagg_cluster.lifecycle.reassignment.progress import (
    MoveStep,
    Patience,
    Reassignment,
    SwitchAnswer,
    WorkerSight,
)
from disagg_cluster.lifecycle.state import RestartRequested, WorkerIdentity, WorkerState
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.supervisor.journal.journal_text import NO_ASSIGNMENTS, Assignments, Entry
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.switching.pair_probe import EngineAddress
from disagg_cluster.switching.pd_switch import RoleCapability, RoleSwitchDriver, SwitchResult
from disagg_exporter.model import Role

LOG = logging.getLogger(__name__)
S = 1_000_000_000
READY = WorkerSight(WorkerState.READY, 1, Role.DECODE, routed_as=Role.DECODE)
MOVE = Reassignment("r", "d0", Role.DECODE, Role.PREFILL, 0, 0, Patience())


def config(engine: str = "standin") -> NodeConfig:
    roles = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}
    workers = [
        {"name": name, "engine": engine, "role": role, "model": "m", "port": 9000 + 10 * n}
        for n, (name, role) in enumerate(roles.items())
    ]
    connector = {"sglang": "nixl", "vllm": "NixlConnector"}.get(engine)
    if connector is not None:
        for n, worker in enumerate(workers):
            worker |= {"kv_transfer": {"connector": connector, "side_channel_port": 9500 + n}}
    return from_mapping({"devices": "cpu", "workers": workers}, "test")


class AtOnce(Executor):
    """Does what it is given at once."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **named))
        except Exception as error:  # noqa: BLE001 - it is the caller's, as from a thread
            done.set_exception(error)
        return done


class Spec:
    """The specification of a worker in a role."""

    def __init__(self, worker: Worker, role: Role) -> None:
        self.name, self.role = worker.name, role
        self.policy = RestartPolicy(drain_seconds=1, stop_seconds=1, start_seconds=5)


class Node:
    """A node whose worker stands as it is told to; what happened is in `did`, in order."""

    def __init__(self, engine: str = "standin", driver: RoleSwitchDriver | None = None) -> None:
        self.config = config(engine)
        self.did: list[str] = []
        self.sight = READY
        self.assignments = NO_ASSIGNMENTS
        self.unwritten, self.has_room = "", False
        self.specs: dict[str, Role] = {}
        self.now_ns = S
        drivers = {} if driver is None else {engine: driver}
        kinds = {worker.name: engine for worker in self.config.workers}
        self.requests = EngineRequests(
            kinds, drivers, self.engine_of, LOG, probe=self.probe, executor=AtOnce
        )
        self.reassigner = self.daemon()

    def daemon(self) -> Reassigner:
        """A daemon that has found nothing yet."""
        return Reassigner(
            self.config,
            cast(Any, self),
            cast(Any, Spec),
            cast(MoveObserver, self),
            self.requests,
            changed=lambda: None,
            switched=lambda name: self.did.append(f"switched {name}"),
            log=LOG,
            clock_ns=lambda: self.now_ns,
        )

    def begin(self, *left: str) -> None:
        """Let the daemon begin; the workers that are left of the one before."""
        said, self.assignments = self.assignments, NO_ASSIGNMENTS
        entries = [cast(Entry, type("E", (), {"worker": name})) for name in left]
        self.reassigner = self.daemon()
        self.reassigner.adopt(cast(Supervisor, self), entries, said)

    # As supervisor
    def record(self) -> None:
        if self.has_room:
            self.unwritten = ""
        move = self.assignments.move
        self.did.append(f"wrote {move.step if move else 'nothing'}")

    def respecify(self, spec: Spec) -> None:
        self.specs[spec.name] = spec.role

    def handle(self, worker: str, event: object) -> None:
        assert isinstance(event, RestartRequested)
        self.did.append(f"restarts {worker} as {self.specs[worker]}")
        self.sight = replace(self.sight, restarting=True)

    def tag(self, worker: str) -> WorkerIdentity:
        return WorkerIdentity(role=self.sight.role if worker == "d0" else self.specs[worker])

    def retag(self, worker: str, role: Role) -> None:
        self.did.append(f"retags {worker} {role}")
        self.sight = replace(self.sight, role=role)

    # As observer
    def of(
        self,
        move: Reassignment,
        answer: tuple[SwitchAnswer, str],
        *,
        asked: bool,
        drained: Collection[str],
    ) -> WorkerSight:
        idle = self.sight.idle and asked
        return replace(self.sight, answer=answer[0], answer_text=answer[1], idle=idle)

    def constraints(self) -> RoleConstraints:
        return RoleConstraints()

    def routed_as(self, worker: str) -> Role | None:
        return self.sight.routed_as

    def remaining(self, worker: str, role: Role, since_ns: int) -> str:
        return "" if self.sight.idle else self.sight.remaining

    def peers(self, worker: str, role: Role) -> tuple[str, ...]:
        return ("p0", "p1")

    def engine_of(self, worker: str) -> EngineAddress:
        return EngineAddress(f"http://{worker}", "m")

    def probe(self, prefill: EngineAddress, decode: EngineAddress) -> None:
        self.did.append(f"probes {prefill.url} {decode.url}")

    def see(self, after_seconds: float = 0.25, **how: Any) -> MoveStep | None:
        """Let the worker stand so, and the daemon look."""
        self.now_ns += round(after_seconds * S)
        self.sight = replace(self.sight, **how)
        self.reassigner.advance()
        move = self.reassigner.move
        return None if move is None else move.step


@pytest.fixture
def node() -> Node:
    node = Node()
    node.begin()
    node.did.clear()
    return node


def test_each_step_of_a_move_is_journaled_before_it_is_done(node: Node) -> None:
    node.reassigner.begin(ReassignWorker("d0", Role.PREFILL), "r")
    assert node.see() is MoveStep.LEAVING
    assert node.see(routed_as=None) is MoveStep.DRAINING
    assert node.specs["d0"] is Role.DECODE
    assert node.see(idle=True) is MoveStep.SWITCHING
    assert node.did[-2:] == ["wrote switching", "restarts d0 as prefill"]
    anew = {"incarnation": 2, "role": Role.PREFILL, "phase_seconds": ((1.0, 1.0),)}
    assert node.see(**anew) is MoveStep.JOINING
    assert node.see(routed_as=Role.PREFILL) is MoveStep.PROVING
    assert node.see(phase_seconds=((1.5, 1.5),)) is MoveStep.DONE

    assert node.reassigner.role_of("d0") is Role.PREFILL
    assert node.assignments.roles == {"d0": Role.PREFILL}
    status = next(s for s in node.reassigner.statuses() if s.worker == "d0")
    assert (status.outcomes, status.unproven, status.role) == ({"done": 1}, 0, "prefill")
    assert status.effect_seconds == 0.25


def test_no_process_is_ended_while_the_journal_cannot_be_written(node: Node) -> None:
    """The next daemon would find a process that it does not know in place of the one it does."""
    node.reassigner.begin(ReassignWorker("d0", Role.PREFILL), "r")
    node.see(routed_as=None)
    assert node.reassigner.constraints().unwritten == ""
    node.unwritten = "cannot write the journal: No space left on device"
    assert node.reassigner.constraints().unwritten == node.unwritten

    assert node.see(idle=True) is MoveStep.DRAINING
    assert not [did for did in node.did if did.startswith("restarts")]

    node.unwritten = ""
    assert node.see() is MoveStep.SWITCHING
    assert node.did[-1] == "restarts d0 as prefill"


def test_a_move_is_possible_as_soon_as_the_journal_can_be_written_again(node: Node) -> None:
    node.unwritten = "cannot write the journal: No space left on device"
    assert node.reassigner.constraints().unwritten

    node.has_room = True

    assert node.reassigner.constraints().unwritten == ""


def test_what_cannot_be_recorded_is_ordered_once_it_can(node: Node) -> None:
    """The disk may be full just when the last step before it is written."""
    node.assignments = Assignments(move=replace(MOVE, step=MoveStep.SWITCHING, beyond=1))
    node.begin("d0")
    node.unwritten = "cannot write the journal: No space left on device"
    node.see(routed_as=None)
    assert node.did[-1] == "wrote switching"

    node.unwritten = ""
    node.see()

    assert node.did[-1] == "restarts d0 as prefill"


def test_a_worker_moved_back_to_its_file_role_has_no_assignment(node: Node) -> None:
    node.assignments = Assignments(roles={"d0": Role.PREFILL}, move=replace(MOVE))
    node.begin("d0")
    back = replace(MOVE, id="s", from_role=Role.PREFILL, to_role=Role.DECODE, base_seconds=None)
    node.assignments = Assignments(
        roles={"d0": Role.PREFILL}, move=replace(back, step=MoveStep.PROVING)
    )
    node.begin("d0")
    node.see(phase_seconds=((1.0, 1.0),))

    assert node.see(phase_seconds=((2.0, 2.0),)) is MoveStep.DONE
    assert node.assignments.roles == {}


def test_a_move_begins_in_the_role_that_a_worker_serves_whatever_the_file_says_now(
    node: Node,
) -> None:
    """An adopted engine keeps its role until its next start."""
    node.see(role=Role.PREFILL)

    node.reassigner.begin(ReassignWorker("d0", Role.DECODE), "r")

    assert node.reassigner.move is not None
    assert node.reassigner.move.from_role is Role.PREFILL


def test_a_move_without_effect_is_rolled_back_and_counted(node: Node) -> None:
    node.assignments = Assignments(move=replace(MOVE, step=MoveStep.PROVING))
    node.begin("d0")
    node.see(role=Role.PREFILL, phase_seconds=((1.0, 1.0),))
    assert node.see(31.0) is MoveStep.LEAVING
    assert node.see(routed_as=None) is MoveStep.DRAINING
    node.see(idle=True)
    assert node.did[-1] == "restarts d0 as decode"
    node.see(incarnation=2, role=Role.DECODE)

    assert node.see(routed_as=Role.DECODE) is MoveStep.ROLLED_BACK
    status = next(s for s in node.reassigner.statuses() if s.worker == "d0")
    assert (status.outcomes, status.unproven) == ({"rolled_back": 1}, 1)
    assert node.reassigner.role_of("d0") is Role.DECODE


def test_a_moved_worker_without_work_is_probed_with_a_peer(node: Node) -> None:
    node.assignments = Assignments(move=replace(MOVE, step=MoveStep.PROVING))
    node.begin("d0")
    node.see(role=Role.PREFILL, phase_seconds=((1.0, 1.0),))
    node.see(3.0)

    assert node.did[-1] == "probes http://d0 http://p0"
    # A worker that is drained by hand is to rest.
    node.reassigner.drain("p0")
    node.see(3.0)
    assert node.did[-1] == "probes http://d0 http://p1"


def test_assignments_and_moves_of_a_removed_worker_are_dropped(node: Node) -> None:
    node.assignments = Assignments(
        roles={"d0": Role.PREFILL, "gone": Role.PREFILL}, drained=("d0",), move=MOVE
    )
    node.begin("d1")

    assert node.assignments == NO_ASSIGNMENTS
    assert node.reassigner.move is None
    assert node.specs["d0"] is Role.DECODE


def test_a_move_of_a_worker_now_mixed_in_the_file_is_dropped(node: Node) -> None:
    mixed = [
        worker.model_copy(update={"role": Role.MIXED}) if worker.name == "d0" else worker
        for worker in node.config.workers
    ]
    node.config = node.config.model_copy(update={"workers": tuple(mixed)})
    node.assignments = Assignments(
        roles={"d0": Role.PREFILL}, move=replace(MOVE, step=MoveStep.PROVING)
    )

    node.begin("d0")

    assert node.see() is None
    assert node.specs["d0"] is Role.MIXED


@pytest.mark.parametrize("step", list(MoveStep))
@pytest.mark.parametrize("undone", [False, True])
def test_the_next_daemon_starts_the_worker_in_the_role_of_the_step(
    node: Node, step: MoveStep, undone: bool
) -> None:
    node.assignments = Assignments(move=replace(MOVE, step=step, undone=undone))
    node.begin("d0")

    early = step in (MoveStep.LEAVING, MoveStep.DRAINING)
    forward = early == undone and not step.final
    assert node.specs["d0"] is (Role.PREFILL if forward else Role.DECODE)


@pytest.mark.parametrize("step", [MoveStep.SWITCHING, MoveStep.PROVING])
def test_a_reload_during_a_move_keeps_the_role_of_the_move(node: Node, step: MoveStep) -> None:
    node.assignments = Assignments(move=replace(MOVE, step=step))
    node.begin("d0")

    node.reassigner.respecify(next(w for w in node.config.workers if w.name == "d0"))

    assert node.specs["d0"] is Role.PREFILL


def test_role_constraints_follow_the_latest_node_file() -> None:
    node = Node("vllm")
    d0 = next(worker for worker in node.config.workers if worker.name == "d0")
    assert ("d0", Role.PREFILL) not in node.reassigner.constraints().misfits

    node.reassigner.respecify(d0.model_copy(update={"kv_transfer": None}))

    assert ("d0", Role.PREFILL) in node.reassigner.constraints().misfits


def test_a_drained_worker_is_not_routed_until_it_is_resumed(node: Node) -> None:
    node.reassigner.drain("d0")
    assert not node.reassigner.gets_requests("d0")
    assert node.assignments.drained == ("d0",)
    node.begin("d0")
    assert node.reassigner.routing_of("d0").drained

    node.reassigner.end_drain("d0")

    assert node.reassigner.gets_requests("d0")
    assert node.assignments == NO_ASSIGNMENTS


class Driver:
    """An engine that can switch, and says so once it is let."""

    def __init__(self, said: Callable[[], SwitchResult]) -> None:
        self._said = said

    def capability(self, url: str, api_key: str) -> RoleCapability:
        return RoleCapability(Role.DECODE, in_place=True)

    def switch(self, url: str, role: Role, api_key: str) -> SwitchResult:
        return self._said()


def test_an_engine_that_switches_in_place_keeps_its_process_and_gets_another_tag() -> None:
    node = Node("sglang", Driver(lambda: SwitchResult(True, "HTTP 200: ok")))
    node.begin()
    node.reassigner.begin(ReassignWorker("d0", Role.PREFILL), "r")
    how = {"has_router": False, "idle": True, "phase_seconds": ((0.0, 0.0),)}
    assert node.see(**how) is MoveStep.PROVING

    assert not any(did.startswith("restarts") for did in node.did)
    assert "retags d0 prefill" in node.did
    assert "switched d0" in node.did
    assert node.see(phase_seconds=((0.0, 5.0),)) is MoveStep.PROVING
    # It reported the switch but still decodes: a restart rolls it back.
    assert node.see(31.0) is MoveStep.SWITCHING
    assert node.did[-1] == "restarts d0 as decode"


def test_an_engine_that_refuses_to_switch_is_restarted_in_its_old_role() -> None:
    node = Node("sglang", Driver(lambda: SwitchResult(False, "HTTP 400: restart required")))
    node.begin()
    node.reassigner.begin(ReassignWorker("d0", Role.PREFILL), "r")
    assert node.see(has_router=False, idle=True) is MoveStep.SWITCHING

    assert node.did[-1] == "restarts d0 as decode"
    move = node.reassigner.move
    assert move is not None
    assert "HTTP 400: restart required" in move.why
