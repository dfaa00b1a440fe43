"""Constructs the parts of one node's daemon and wires each to the parts it needs.

Each part's collectors are registered where it is constructed; `Daemon` decides what runs when.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.layout import Layout
from disagg_cluster.config.router import ROUTER_NAME
from disagg_cluster.continuity.succession import Succession
from disagg_cluster.control.service import ControlService
from disagg_cluster.daemon.main_loop import BackgroundTask, BackgroundTasks, MainLoop
from disagg_cluster.daemon.metrics_service import MetricsService
from disagg_cluster.daemon.moving.composition import Moving, RouterAccess
from disagg_cluster.daemon.remote_control import RemoteControl
from disagg_cluster.daemon.router_handle import RouterHandle
from disagg_cluster.discovery.observations.types import EngineNames
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.host.run_dir.watch import RunDirWatch
from disagg_cluster.host.worker_logs import Rotation
from disagg_cluster.launch.command import child_environment
from disagg_cluster.launch.worker_specs import specs_of
from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.supervisor.hooks.failure_notifier import failure_notifier
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.ownership.control_groups import ControlGroups, group_root
from disagg_cluster.supervisor.supervision_view import ChangeReports, SupervisionView
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.telemetry.device_watch import DeviceWatch
from disagg_cluster.telemetry.engine_registry import EngineRegistry
from disagg_cluster.telemetry.launched_engines import LaunchedEngines
from disagg_cluster.telemetry.pages.front_watch import FrontWatch
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.collectors import CallbackErrors
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.landing.links import PageLinks
from disagg_exporter.metrics.daemon_process import DaemonProcess
from disagg_exporter.model import CollectorStatus, DaemonCounts, FrontCounts, Snapshot
from disagg_exporter.model.waits import LatencyTargets

_log = logging.getLogger("disagg_node")

Collectors = Callable[[], tuple[CollectorStatus, ...]]


class Composition:
    """The parts, as attributes; none is running yet.

    Args:
        config: The node file.
        layout: The devices of each worker.
        source: The devices.
        run_folder: For sockets, journal and logs.
        beside: Collectors of parts outside the daemon, for the metrics page.
    """

    def __init__(
        self,
        config: NodeConfig,
        layout: Layout,
        source: DeviceSource,
        run_folder: Path,
        beside: Collectors,
    ) -> None:
        self._config = config
        self.layout = layout
        self._source = source
        self._collectors: list[Collectors] = [beside]
        register = self._collectors.append
        self._process = DaemonProcess()
        self.folder = RunFolder(run_folder)
        self.specs = specs_of(config, layout, self.folder, os.environ)
        self.ledger = Ledger()
        self.capacity_model = CapacityModel(config.latency.itl_seconds)
        self.lock = RunLock(self.folder.lock, signs=False)
        self.journal = Journal(self.folder.journal, _log, at=self.lock.at)
        register(lambda: (self.journal.status(),))
        self.workers = workers = SupervisionView(self.specs)
        register(workers.collectors)
        self.registry = EngineRegistry(
            self.ledger, config.intervals.pages_seconds, up_of=workers.up, served=workers.served
        )
        self.engines = LaunchedEngines(config.workers, workers.tag, self.registry)
        self.devices = DeviceWatch(source, self.ledger)
        accounts = self.folder, self.ledger, self.capacity_model
        self.names = EngineNames((ROUTER_NAME, *self.specs))
        self.discovery = None
        if config.attach is not None:
            from disagg_cluster.discovery.attach_mode import AttachMode  # Others do without.
            from disagg_cluster.discovery.kubernetes_discovery import kubernetes_of

            self.discovery = AttachMode(
                config.attach,
                self.registry,
                self.names,
                *accounts,
                layout.devices,
                lambda: self.devices.last_sweep.readings(time.monotonic_ns()),
                kubernetes_of(config.attach, layout.devices, self.folder.pods),
            )
            register(self.discovery.collectors)
        self.digests = {name: partial(workers.command_digest, name) for name in self.specs}
        self.succession = Succession(
            *accounts,
            devices=lambda: (*self.layout.devices, *self.registry.devices()),
            names=lambda: self.names.by_key,
            at=self.lock.at,
            digests=self.digests,
            log=_log,
        )
        register(self.succession.collectors)
        links = config.links
        name = " in ".join(filter(None, (config.node, config.cluster)))
        self.metrics = MetricsService(
            config.listen,
            config.bridges,
            name,
            lambda: self.main_loop.age_seconds(),
            PageLinks(config.planner or "", links.prometheus or "", links.grafana or ""),
            LatencyTargets(config.latency.ttft_seconds, config.latency.itl_seconds),
        )
        register(self.metrics.collectors)
        self.router = RouterHandle(config, config.router, self.folder) if config.router else None
        if self.router is not None:
            register(self.router.watch.collectors)
        self.moving = Moving(
            config,
            layout,
            self.folder,
            self.journal,
            workers,
            page_of=self.registry.pages.page,
            snapshot=lambda: self.metrics.snapshot,
            router=_router_access(self.router),
            switched=self.engines.switched,
            changed=self._moved,
            log=_log,
        )
        register(self.moving.collectors)
        self.fronts = FrontWatch(config.frontends, config.intervals.pages_seconds)
        register(self.fronts.collectors)
        self.rotation = Rotation(
            workers.logs,
            workers.log_was_cut,
            config.log_megabytes,
            _log,
            writers=workers.writers,
        )
        register(self.rotation.collectors)
        self.folder_watch = RunDirWatch(
            self.folder.path,
            (self.folder.logs, self.folder.sim),
            (("lock", self.lock), ("journal", self.journal)),
            _log,
            (self.lock.answer, workers.record),
        )
        register(lambda: (self.folder_watch.status(),))
        self.changes = ChangeReports(self._changed, _log)
        register(self.changes.collectors)
        self.background = BackgroundTasks(_log)
        register(self.background.collectors)
        self.callbacks = CallbackErrors(_log)
        register(self.callbacks.collectors)
        self.control = ControlService(config.node, self.folder, _log)
        register(self.control.collectors)
        self.remote = RemoteControl(config.control.grpc, self.folder, _log)
        register(self.remote.collectors)
        self.hook = failure_notifier(config, self.folder.hook_log, os.environ, _log)
        register(self.hook.collectors)
        self.main_loop = MainLoop(
            self.ledger,
            self.capacity_model,
            self.registry,
            self.devices,
            lambda: self.layout.devices,
            node_status=self._node_status,
            show=self.metrics.show,
            watched=lambda: self.metrics.is_watched,
            upkeep=self._upkeep_round,
            sourcing=self.succession.sourcing,
            inherit=self.succession.learned.inherit,
            save=self.succession.save,
            fronts=self._front_counts,
            gpu_price=config.price,
        )

    def make_supervisor(self) -> Supervisor:
        """Create the supervisor of the workers, once the run folder is locked."""
        self.workers.supervisor = Supervisor(
            (*([self.router.spec] if self.router else []), *self.specs.values()),
            self.changes.report,
            self.moving.drain_page,
            journal=self.journal,
            health_seconds=self._config.intervals.health_seconds,
            worked_ns=self._worked_ns,
            on_failure=self.hook.notify,
            groups=ControlGroups(*group_root(), _log),
            child_environment=partial(child_environment, os.environ),
        )
        return self.workers.supervisor

    def step_feeds(self) -> dict[str, StepFeed]:
        """Create the step feeds of all workers' engines."""
        return {name: self.step_feed(name) for name in self.specs}

    def step_feed(self, name: str) -> StepFeed:
        """Create the step feed of one worker's engine."""
        return StepFeed(
            name,
            self.folder.socket(name),
            self.ledger,
            self.capacity_model,
            partial(self.engines.pid, name),
            self.specs[name].command.env,
            rest_seconds=self.main_loop.rest_seconds,
        )

    def background_tasks(self) -> dict[str, BackgroundTask]:
        """The background tasks by name."""
        tasks = {"pages": self.registry.pages.run, "moves": self.moving.reassigner.run}
        if self.discovery is not None:
            tasks["discovery"] = self.discovery.run
        tasks |= {
            "main_loop": self.main_loop.run,
            "log_rotation": self.rotation.run,
            "run_folder": self.folder_watch.run,
            "learned": self.succession.learned.run,
            "failure_hook": self.hook.run,
        }
        if self.moving.membership is not None:
            tasks["router_members"] = self.moving.membership.run
        if self.router is not None:
            tasks["router"] = self.router.watch.run
        if self._config.frontends:
            tasks["frontends"] = self.fronts.run
        return tasks

    def _changed(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, why: str
    ) -> None:
        """Pass a worker's state change to the parts that need it."""
        if self.router is not None and name == self.router.spec.name:
            self.router.changed(pid)
        else:
            self.engines.changed(name, old, new, pid, why)
        self.moving.happened()
        self.control.changed()

    def _moved(self) -> None:
        """Notify control clients of a change of role or routing, and engines of their drains."""
        self.engines.set_drained(self.journal.assignments.drained)
        self.control.changed()

    def _front_counts(self) -> tuple[FrontCounts, ...]:
        """User requests counted by our router and by other frontends."""
        router = () if self.router is None else (self.router.watch.counts(),)
        return (*router, *self.fronts.counts())

    def _worked_ns(self, worker: str) -> int | None:
        """When a worker's engine last did work; None for the router, which does none."""
        is_router = self.router is not None and worker == self.router.spec.name
        return None if is_router else self.engines.worked_ns(worker)

    def _upkeep_round(self) -> None:
        """Check for silent engines; retry a failed journal write."""
        self.changes.try_again()
        names = [status.engine for status in self.registry.statuses()]
        self.succession.give_up_missing(names, time.monotonic_ns())
        self.workers.keep_up()
        self.engines.forget_the_gone()
        self.engines.check_step_silence()

    def _node_status(self, now_ns: int, wall_offset_seconds: float) -> Snapshot:
        return Snapshot(
            taken_ns=now_ns,
            wall_offset_seconds=wall_offset_seconds,
            fresh_until_ns=now_ns - 1,
            workers=self.workers.statuses(self.journal.assignments.drained),
            worker_states=tuple(WorkerState),
            collectors=tuple(status for part in self._collectors for status in part()),
            router=self.router.watch.status() if self.router else None,
            simulated=self._source.name == "sim" or self.engines.simulated,
            daemon_counts=DaemonCounts(
                self.control.counts(),
                self.control.refusals(),
                self.metrics.http_refusals(),
                self.folder_watch.restored,
                self.hook.counts(),
                self.moving.reassigner.statuses(),
            ),
            process=self._process.usage(),
        )


def _router_access(router: RouterHandle | None) -> RouterAccess | None:
    if router is None:
        return None
    watch = router.watch
    return RouterAccess(lambda: router.pid, lambda: watch.status().page, watch.set_engines)
