"""The parts of one node's daemon: each is made here, and wired to those that it needs.

What is shown of each on the page is registered where it is made; `Daemon` says what runs when.
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
from disagg_cluster.continuity.succession import Succession
from disagg_cluster.control.service import ControlService
from disagg_cluster.daemon.background_tasks import Part, Parts
from disagg_cluster.daemon.engine_registry import Roster, attaching
from disagg_cluster.daemon.main_loop import Aside, Pulse
from disagg_cluster.daemon.metrics_service import Front
from disagg_cluster.daemon.router_handle import Gate
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.host.run_dir.watch import RunDirWatch
from disagg_cluster.host.worker_logs import Rotation
from disagg_cluster.launch.command import child_environment
from disagg_cluster.launch.worker_specs import posts_of
from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.supervisor.hooks.failure_notifier import failure_notifier
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.ownership.control_groups import ControlGroups, group_root
from disagg_cluster.supervisor.supervision_view import ChangeReports, SupervisionView
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.telemetry.device_watch import DeviceWatch
from disagg_cluster.telemetry.launched_engines import Engines
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.collectors import CallbackErrors
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.model import CollectorStatus, DaemonCounts

_log = logging.getLogger("disagg_node")

Collectors = Callable[[], tuple[CollectorStatus, ...]]


class Composition:
    """The parts, as attributes; none runs yet.

    Args:
        config: The node file.
        layout: Who has which device.
        source: The devices.
        run_folder: For sockets, journal and logs.
        beside: How those fare that are not the daemon's own, for the page.
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
        self._source = source
        self._collectors: list[Collectors] = [beside]
        shown = self._collectors.append
        self.folder = RunFolder(run_folder)
        self.posts = posts_of(config, layout, self.folder, os.environ)
        self.ledger = Ledger()
        self.fullness = CapacityModel(config.latency.itl_seconds)
        self.lock = RunLock(self.folder.lock, signs=False)
        self.journal = Journal(self.folder.journal, _log, at=self.lock.at)
        shown(lambda: (self.journal.status(),))
        self.workers = workers = SupervisionView(self.posts)
        shown(workers.collectors)
        self.engines = Engines(
            config.workers, workers.tag, self.ledger, up_of=workers.up, served=workers.served
        )
        self.devices = DeviceWatch(source, self.ledger)
        books = self.folder, self.ledger, self.fullness
        found = attaching(config, layout, *books, self.devices, self.engines)
        self.roster = Roster(self.engines, found, config.intervals.pages_seconds)
        self.succession = Succession(
            *books,
            devices=lambda: (*layout.devices, *self.roster.devices()),
            names=lambda: self.roster.names,
            at=self.lock.at,
            digests={name: partial(workers.command_digest, name) for name in self.posts},
            log=_log,
        )
        shown(self.succession.collectors)
        name = " in ".join(filter(None, (config.node, config.cluster)))
        self.front = Front(config.listen, config.bridges, name, lambda: self.pulse.age_seconds())
        shown(self.front.collectors)
        self.router = Gate(config, config.router, self.folder) if config.router else None
        if self.router is not None:
            shown(self.router.watch.collectors)
        self.rotation = Rotation(
            workers.logs,
            workers.log_was_cut,
            config.log_megabytes,
            _log,
            writers=workers.writers,
        )
        shown(self.rotation.collectors)
        self.folder_watch = RunDirWatch(
            self.folder.path,
            (self.folder.logs, self.folder.sim),
            (("lock", self.lock), ("journal", self.journal)),
            _log,
            (self.lock.answer, workers.record),
        )
        shown(lambda: (self.folder_watch.status(),))
        self.changes = ChangeReports(self._changed, _log)
        shown(self.changes.collectors)
        self.background = Parts(_log)
        shown(self.background.collectors)
        self.callbacks = CallbackErrors(_log)
        shown(self.callbacks.collectors)
        self.control = ControlService(config.node, self.folder, _log)
        shown(self.control.collectors)
        self.hook = failure_notifier(config, self.folder.hook_log, os.environ, _log)
        shown(self.hook.collectors)
        self.pulse = Pulse(
            self.ledger,
            self.fullness,
            self.roster,
            self.devices,
            layout.devices,
            aside=self._aside,
            show=self.front.show,
            watched=lambda: self.front.is_watched,
            seldom=self._seldom,
            sourcing=self.succession.sourcing,
            inherit=self.succession.learned.inherit,
            save=self.succession.save,
            gpu_price=config.price,
        )

    def make_crew(self) -> Supervisor:
        """Make who keeps the workers, once the run folder is ours."""
        self.workers.crew = Supervisor(
            (*([self.router.post] if self.router else []), *self.posts.values()),
            self.changes.take,
            self.roster.pages.page,
            journal=self.journal,
            health_seconds=self._config.intervals.health_seconds,
            worked_ns=self._worked_ns,
            on_failure=self.hook.tell,
            groups=ControlGroups(*group_root(), _log),
            child_environment=partial(child_environment, os.environ),
        )
        return self.workers.crew

    def background_parts(self) -> tuple[Part, ...]:
        """What runs all the time beside the workers."""
        watched = () if self.router is None else (Part("router", self.router.watch.run),)
        return (
            *self.roster.parts(),
            Part("main_loop", self.pulse.run),
            Part("log_rotation", self.rotation.run),
            Part("run_folder", self.folder_watch.run),
            Part("learned", self.succession.learned.run),
            Part("failure_hook", self.hook.run),
            *watched,
        )

    def _changed(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, why: str
    ) -> None:
        """Pass a change of a worker on to those it concerns."""
        if self.router is not None and name == self.router.post.name:
            self.router.changed(pid)
        else:
            self.engines.changed(name, old, new, pid, why)
        self.control.changed()

    def _worked_ns(self, worker: str) -> int | None:
        """When a worker's engine is known to have worked; a router tells no work."""
        is_router = self.router is not None and worker == self.router.post.name
        return None if is_router else self.engines.worked_ns(worker, self.roster.pages)

    def _seldom(self) -> None:
        """Look for engines that have gone silent; try a journal again that could not be written."""
        self.changes.try_again()
        names = [status.engine for status in self.roster.statuses()]
        self.succession.look(names, time.monotonic_ns())
        self.workers.keep_up()
        self.engines.listen_for_silence(self.roster.pages)

    def _aside(self) -> Aside:
        return Aside(
            workers=self.workers.statuses(),
            collectors=tuple(status for part in self._collectors for status in part()),
            router=self.router.watch.status() if self.router else None,
            simulated=self._source.name == "sim" or self.engines.simulated,
            counts=DaemonCounts(
                self.control.counts(),
                self.front.http_refusals(),
                self.folder_watch.restored,
                self.hook.counts(),
            ),
        )
