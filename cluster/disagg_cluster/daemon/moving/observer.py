"""Observes a worker during a role change: process, requests, router and effect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from disagg_cluster.config import NodeConfig
from disagg_cluster.control.role_decisions import last_of_role
from disagg_cluster.control.service import RoutingView, worker_view
from disagg_cluster.control.views import RoleConstraints
from disagg_cluster.lifecycle.reassignment.progress import (
    PhaseSeconds,
    Reassignment,
    SwitchAnswer,
    WorkerSight,
)
from disagg_cluster.lifecycle.state import Lifecycle, WorkerState
from disagg_cluster.supervisor.supervision_view import SupervisionView
from disagg_cluster.supervisor.worker_spec import WorkerSnapshot
from disagg_cluster.switching.drained import (
    FETCHED_FROM,
    UNKNOWN_ROUTE,
    has_fetched,
    remaining_text,
)
from disagg_cluster.switching.membership import Membership
from disagg_cluster.switching.pair_probe import EngineAddress
from disagg_exporter.model import EngineAccount, EnginePage, Method, Phase, Role, Snapshot

_TELLING = (Method.STEPS, Method.FPM, Method.ENGINE_TIMERS, Method.PAGE, Method.PAGE_CPU)
"""Methods that attribute phases by an engine's work, not by its role."""

_PHASES = {Role.PREFILL: Phase.PREFILL, Role.DECODE: Phase.DECODE}
_STRANGER_BYTES = 512 << 20
_UNASKED = "its engine has not told whether it can switch in place"


class MoveObserver:
    """Observes the workers of a node.

    Args:
        config: The node file.
        workers: The supervised workers.
        page_of: Returns the last metrics page of a worker.
        snapshot: Returns the latest snapshot of the node.
        pending: Returns how many requests the router will still send to a URL, and when it reported
            that; None requests without a router.
        membership: The engines of the router; None if they are fixed at its start.
    """

    def __init__(
        self,
        config: NodeConfig,
        workers: SupervisionView,
        page_of: Callable[[str], EnginePage | None],
        snapshot: Callable[[], Snapshot | None],
        pending: Callable[[str], tuple[float | None, int]],
        membership: Membership | None,
    ) -> None:
        self.set_config(config)
        self._workers = workers
        self._page_of = page_of
        self._snapshot = snapshot
        self._pending = pending
        self._membership = membership
        self._fetching: dict[str, tuple[int, Mapping[str, EnginePage]]] = {}

    def set_config(self, config: NodeConfig) -> None:
        """Use the workers of this node file from now on."""
        self._config = config

    def of(
        self,
        move: Reassignment,
        answer: tuple[SwitchAnswer, str],
        *,
        asked: bool,
        drained: Collection[str],
    ) -> WorkerSight:
        """The state of the worker of a move.

        Args:
            move: The move.
            answer: Its engine's answer to the switch request.
            asked: Whether the engine has reported its capability.
            drained: The workers that are drained by hand.
        """
        worker = self._worker(move.worker)
        life, role = worker.life, worker.tag.role
        seconds, has_phases = self._phase_seconds(move)
        remaining = self.remaining(move.worker, role, move.since_ns) if asked else _UNASKED
        return WorkerSight(
            state=life.state,
            incarnation=life.generation,
            role=role,
            restarting=life.restarting,
            paused=life.paused_ns is not None,
            being_stopped=life.state is WorkerState.DRAINING and not life.restarting,
            reason=worker.reason,
            routed_as=self.routed_as(move.worker),
            has_router=self._membership is not None,
            router_known=self._router_known,
            idle=not remaining,
            remaining=remaining,
            needed=self._needed(move, drained),
            phase_seconds=seconds,
            tells_phases=has_phases,
            answer=answer[0],
            answer_text=answer[1],
        )

    def routed_as(self, worker: str) -> Role | None:
        """The role in which the router sends a worker requests; None if it sends none.

        `Role.UNKNOWN` while a router that can change its engines does not tell them.
        """
        if self._membership is None:
            return None
        present = self._membership.present
        return Role.UNKNOWN if present is None else present.get(self._workers.tag(worker).url)

    def remaining(self, worker: str, role: Role, since_ns: int) -> str:
        """What it still has to do, in words; empty once it has no request and no peer needs it.

        Args:
            worker: Its name.
            role: The role of its process.
            since_ns: Since when it is to get nothing new.
        """
        if self._membership is not None and not self._router_known:
            return UNKNOWN_ROUTE
        pending, pending_ns = self._pending(self._workers.tag(worker).url)
        remaining = remaining_text(self._page_of(worker), since_ns, pending, pending_ns)
        if remaining or role is not Role.PREFILL:
            return remaining
        if worker not in self._fetching or self._fetching[worker][0] != since_ns:
            self._fetching[worker] = since_ns, self._decode_pages(worker)
        fetched = all(
            (now := self._page_of(name)) is None or has_fetched(then, now)
            for name, then in self._fetching[worker][1].items()
        )
        return "" if fetched else FETCHED_FROM

    def constraints(self) -> RoleConstraints:
        """What decisions about a worker's role need besides the workers."""
        router = self._config.router
        here = RoleConstraints(strangers=self._strangers(), silent=self._silent())
        if router is None:
            return here
        elsewhere = {Role.PREFILL: router.prefill, Role.DECODE: router.decode}
        return replace(
            here,
            membership=router.membership,
            elsewhere=frozenset(role for role, urls in elsewhere.items() if urls),
        )

    def peers(self, worker: str, role: Role) -> tuple[str, ...]:
        """The ready workers of the same model and the other role, those that answer first."""
        supervisor = self._workers.supervisor
        assert supervisor is not None
        mine = self._worker(worker)
        found = (
            each
            for each in supervisor.snapshots()
            if each.life.state is WorkerState.READY
            and each.tag.role in _PHASES
            and each.tag.role is not role
            and each.tag.model_name == mine.tag.model_name
        )
        best = sorted(
            found, key=lambda peer: (peer.life.up is False, peer.life.paused_ns is not None)
        )
        return tuple(each.spec.name for each in best)

    def engine_of(self, worker: str) -> EngineAddress:
        """The address of its engine."""
        found = self._worker(worker)
        return EngineAddress(found.tag.url, found.tag.model_name, found.spec.target.api_key)

    def _needed(self, move: Reassignment, drained: Collection[str]) -> str:
        """Why users of its old role would not be served without it; empty if they would."""
        supervisor = self._workers.supervisor
        assert supervisor is not None
        views = {}
        for each in supervisor.snapshots():
            view = worker_view(each, 0, RoutingView(drained=each.spec.name in drained))
            # One that the next daemon has just adopted serves on.
            state = WorkerState.READY if serves(each.life) else view.state
            views[view.worker] = replace(view, state=state)
        leaver = replace(views[move.worker], role=move.from_role.value)
        last = last_of_role(leaver, views.values(), self.constraints())
        return "" if last is None else last.why

    @property
    def _router_known(self) -> bool:
        return self._membership is not None and self._membership.present is not None

    def _worker(self, name: str) -> WorkerSnapshot:
        supervisor = self._workers.supervisor
        assert supervisor is not None
        return next(each for each in supervisor.snapshots() if each.spec.name == name)

    def _decode_pages(self, worker: str) -> Mapping[str, EnginePage]:
        pages = {name: self._page_of(name) for name in self.peers(worker, Role.PREFILL)}
        return {name: page for name, page in pages.items() if page is not None}

    def _phase_seconds(self, move: Reassignment) -> tuple[tuple[PhaseSeconds, ...] | None, bool]:
        """Phase seconds from its steps and from its account, and whether they are measured."""
        snapshot = self._snapshot()
        accounts = () if snapshot is None else snapshot.engine_accounts
        account = next((each for each in accounts if each.engine == move.worker), None)
        if account is None:
            return None, False
        role, has_phases = move.heading, account.method in _TELLING
        return (_reported(account, role), _committed(account, role)), has_phases

    def _silent(self) -> frozenset[str]:
        supervisor = self._workers.supervisor
        all_here = () if supervisor is None else supervisor.snapshots()
        return frozenset(each.spec.name for each in all_here if _is_silent(each.life))

    def _strangers(self) -> Mapping[str, str]:
        """Descriptions of other processes on the GPUs of workers."""
        snapshot = self._snapshot()
        works = {} if snapshot is None else {work.gpu: work for work in snapshot.foreign_work}
        supervisor = self._workers.supervisor
        found: dict[str, str] = {}
        for each in () if supervisor is None else supervisor.snapshots():
            for gpu in each.tag.gpus:
                used_bytes = works[gpu].memory_bytes if gpu in works else None
                if used_bytes is not None and used_bytes >= _STRANGER_BYTES:
                    gibibytes = used_bytes / (1 << 30)
                    found[each.spec.name] = (
                        f"processes of no engine of this node hold {gibibytes:.1f} GiB on {gpu}"
                    )
        return found


def serves(life: Lifecycle) -> bool:
    """Whether it can get requests; an adopted worker can, even before its first probe."""
    if life.state is WorkerState.STARTING:
        return life.served
    return life.state is WorkerState.READY


def _is_silent(life: Lifecycle) -> bool:
    """Whether it neither answers nor works; one missed probe of a busy engine does not show that.

    Failed probes of a paused worker are not counted.
    """
    if life.state is not WorkerState.READY or life.up is not False or life.left_alone:
        return False
    return life.failed_probes > 1 or life.paused_ns is not None


def _reported(account: EngineAccount, role: Role) -> PhaseSeconds:
    """Seconds its steps report in the phase of `role` and in total; zero if it reports none.

    Committing them takes some seconds more (docs/accounting.md, A6). A mixed step counts as decode:
    a decode engine that recomputes a prompt token makes them, a prefill engine does not.
    """
    context_ns, generation_ns, mixed_ns, _ = account.reported.elapsed_ns
    used_ns = context_ns if role is Role.PREFILL else generation_ns + mixed_ns
    return used_ns / 1e9, (context_ns + generation_ns + mixed_ns) / 1e9


def _committed(account: EngineAccount, role: Role) -> PhaseSeconds:
    """Committed seconds as an engine of `role`, in that phase and in both."""
    used = {phase: account.gpu_seconds.get((role, phase), 0.0) for phase in _PHASES.values()}
    return used[_PHASES[role]], sum(used.values())
