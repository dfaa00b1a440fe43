"""Constructs and wires the parts that move workers between roles."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from disagg_cluster.config import NodeConfig, Router, Worker
from disagg_cluster.config.layout import Layout
from disagg_cluster.daemon.moving.engine_requests import EngineRequests
from disagg_cluster.daemon.moving.observer import MoveObserver, serves
from disagg_cluster.daemon.moving.reassigner import Reassigner
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.launch.router_command import bootstrap_port, router_engines
from disagg_cluster.launch.worker_specs import in_role, spec_of
from disagg_cluster.lifecycle.reassignment.progress import ROLES
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.supervision_view import SupervisionView
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_cluster.switching.members import Member
from disagg_cluster.switching.membership import Membership
from disagg_cluster.switching.pd_switch import DRIVERS
from disagg_cluster.switching.router_admin import RouterAdmin
from disagg_exporter.model import (
    CollectorStatus,
    EnginePage,
    Role,
    RouterEngine,
    RouterPage,
    Snapshot,
)


@dataclass(frozen=True, slots=True)
class RouterAccess:
    """The node's router as moves use it: its process, its last page, and its engines by role."""

    pid: Callable[[], int | None]
    page: Callable[[], RouterPage | None]
    set_engines: Callable[[tuple[RouterEngine, ...]], None]


class Moving:
    """Created once per daemon, before its supervisor.

    Args:
        config: The node file.
        layout: The devices of each worker.
        folder: For sockets and logs.
        journal: Records roles.
        workers: The supervised workers, once there are any.
        page_of: Returns the last metrics page of a worker.
        snapshot: Returns the latest snapshot of the node.
        router: The node's router; None without one.
        switched: Called with a worker whose engine changed its role within the same process.
        changed: Called when the state of a move or of routing has changed.
        log: Logs each step.
    """

    def __init__(
        self,
        config: NodeConfig,
        layout: Layout,
        folder: RunFolder,
        journal: Journal,
        workers: SupervisionView,
        *,
        page_of: Callable[[str], EnginePage | None],
        snapshot: Callable[[], Snapshot | None],
        router: RouterAccess | None,
        switched: Callable[[str], None],
        changed: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._config = config
        self._layout = layout
        self._folder = folder
        self._workers = workers
        self._router = router
        self._page_of = page_of
        self._report = changed
        self.membership = None
        if router is not None and config.router is not None and config.router.membership == "live":
            self.membership = Membership(
                RouterAdmin(config.router.url),
                self._members,
                [worker.url for worker in config.workers],
                router.pid,
                self._membership_changed,
                log,
            )
        self._observer = observer = MoveObserver(
            config, workers, page_of, snapshot, self._pending, self.membership
        )
        self._kinds = {worker.name: worker.engine for worker in config.workers}
        requests = EngineRequests(self._kinds, DRIVERS, observer.engine_of, log)
        self.reassigner = Reassigner(
            config,
            journal,
            self._spec_in_role,
            observer,
            requests,
            changed=self._changed,
            switched=switched,
            log=log,
        )

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Status of keeping the router's engines up to date."""
        return () if self.membership is None else self.membership.collectors()

    def happened(self) -> None:
        """Report that a worker has changed."""
        self._set_router_engines()
        self.reassigner.happened()
        if self.membership is not None:
            self.membership.check_now()

    def drain_page(self, worker: str) -> EnginePage | None:
        """The last page of a worker that drains; None while it may show too few requests.

        The router may still send it some, and peers may fetch KV from it. Where the router is not
        told its engines, nobody knows.
        """
        supervisor = self._workers.supervisor
        if self.membership is None or supervisor is None or not self._router_runs:
            return self._page_of(worker)
        role, since_ns = supervisor.tag(worker).role, supervisor.life(worker).since_ns
        if role not in ROLES or self._moves_on(worker):
            return self._page_of(worker)
        routed = self._observer.routed_as(worker) is not None
        waits = routed or self._observer.remaining(worker, role, since_ns)
        return None if waits else self._page_of(worker)

    def set_workers(self, config: NodeConfig, layout: Layout) -> None:
        """Switch to these supervised workers and this layout."""
        self._config, self._layout = config, layout
        self._kinds |= {worker.name: worker.engine for worker in config.workers}
        self._observer.set_config(config)
        if self.membership is not None:
            self.membership.add_owned([worker.url for worker in config.workers])
        self.reassigner.set_workers(config)
        self._changed()

    def _moves_on(self, worker: str) -> bool:
        """Whether it is on its way to another role: all was known before its process was to end."""
        move = self.reassigner.move
        if move is None or move.worker != worker:
            return False
        return not (move.step.final or move.undone)

    @property
    def _router_runs(self) -> bool:
        return self._router is not None and self._router.pid() is not None

    def _changed(self) -> None:
        """Update router and clients after a change of a worker's role or routing."""
        self._set_router_engines()
        if self.membership is not None:
            self.membership.check_now()
        self._report()

    def _set_router_engines(self) -> None:
        if self._router is not None and self._config.router is not None:
            moved = [in_role(w, self._workers.tag(w.name).role) for w in self._config.workers]
            config = self._config.model_copy(update={"workers": tuple(moved)})
            self._router.set_engines(router_engines(config, self._config.router))

    def _membership_changed(self) -> None:
        self.reassigner.happened()
        self._report()

    def _spec_in_role(self, worker: Worker, role: Role) -> WorkerSpec:
        moved = in_role(worker, role)
        return spec_of(moved, self._config, self._layout, self._folder, os.environ)

    def _pending(self, url: str) -> tuple[float | None, int]:
        if self._router is None:
            return None, 0
        page = self._router.page()
        if page is None:
            # How many requests it would still send is unknown, so no worker counts as drained.
            return float("inf"), 0
        return page.pending_by_engine.get(url, 0.0), page.t_ns

    def _members(self) -> tuple[Member, ...]:
        """The engines that the router should have now."""
        router = self._config.router
        assert router is not None
        here = tuple(filter(None, map(partial(self._member, router), self._config.workers)))
        if self.membership is not None:
            self.membership.add_owned([member.url for member in here])
        models = {worker.model_name for worker in self._config.workers}
        model = models.pop() if len(models) == 1 else ""
        away = ((Role.PREFILL, router.prefill), (Role.DECODE, router.decode))
        elsewhere = (Member(url, role, model) for role, urls in away for url in urls)
        return (*here, *elsewhere)

    def _member(self, router: Router, worker: Worker) -> Member | None:
        supervisor = self._workers.supervisor
        if supervisor is None or not serves(supervisor.life(worker.name)):
            return None
        # The node file may give it another address, role or model at its next start.
        tag = supervisor.tag(worker.name)
        if tag.role not in ROLES or not self.reassigner.gets_requests(worker.name):
            return None
        moved = in_role(worker, tag.role)
        return Member(tag.url, tag.role, tag.model_name, bootstrap_port(router, moved))
