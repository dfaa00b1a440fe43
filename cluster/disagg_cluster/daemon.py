"""The node daemon: the one place where the parts meet.

It opens the metrics page and the steps sockets before it starts an engine, so that nothing an
engine does goes unseen; it ends the engines before it closes them, or leaves them to the next
daemon. Decisions are made elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Literal

from disagg_cluster.command import child_environment
from disagg_cluster.config import NodeConfig
from disagg_cluster.control.service import ControlService
from disagg_cluster.devicewatch import DeviceWatch
from disagg_cluster.engines import Engines
from disagg_cluster.feeds import hearing
from disagg_cluster.front import Front
from disagg_cluster.hooks.configured import failure_hook
from disagg_cluster.host.private_dir import make_inner
from disagg_cluster.host.run_dir_watch import RunDirWatch
from disagg_cluster.journal import Journal
from disagg_cluster.launch import posts_of
from disagg_cluster.layout import Layout
from disagg_cluster.life import WorkerState
from disagg_cluster.parts import Part, Parts
from disagg_cluster.pulse import Aside, Pulse
from disagg_cluster.roster import Roster, attaching
from disagg_cluster.rotation import Rotation
from disagg_cluster.router import Gate
from disagg_cluster.rundir import RunFolder
from disagg_cluster.runlock import RunLock
from disagg_cluster.supervisor.change_reports import ChangeReports
from disagg_cluster.supervisor.crew_view import CrewView
from disagg_cluster.supervisor.ownership.control_group import group_root
from disagg_cluster.supervisor.ownership.control_groups import ControlGroups
from disagg_cluster.supervisor.stuck import stuck
from disagg_cluster.telemetry.succession import Succession
from disagg_cluster.whereabouts import leaving
from disagg_cluster.workers import Crew
from disagg_exporter.accounting import Ledger
from disagg_exporter.collectors import CallbackErrors
from disagg_exporter.devices import DeviceSource
from disagg_exporter.fullness import Fullness
from disagg_exporter.listen import ListenAddress
from disagg_exporter.model import CollectorStatus, DaemonCounts, Snapshot

_log = logging.getLogger("disagg_node")

_SILENT_SECONDS = 10.0  # A daemon that has done nothing for so long is not well.

AtEnd = Literal["stop", "leave"]
"""What becomes of the engines: drained and stopped, or left running for the next daemon."""


class Daemon:
    """One node's daemon; made and run once.

    Args:
        config: The node file.
        layout: Who has which device.
        source: The devices; closed by the caller.
        run_folder: For sockets, journal and logs; made if it is not there.
        on_failure: What becomes of the engines if the daemon itself fails.
        beside: How those fare that are not the daemon's own, for the page.
    """

    def __init__(
        self,
        config: NodeConfig,
        layout: Layout,
        source: DeviceSource,
        run_folder: Path,
        *,
        on_failure: AtEnd = "stop",
        beside: Callable[[], tuple[CollectorStatus, ...]] = tuple,
    ) -> None:
        self._config = config
        self._layout = layout
        self._source = source
        self._folder = RunFolder(run_folder)
        self._on_failure = on_failure
        self._beside = beside
        self._posts = posts_of(config, layout, self._folder, os.environ)
        self._ledger = Ledger()
        self._fullness = Fullness(config.latency.itl_seconds)
        self._lock = RunLock(self._folder.lock, signs=False)
        self._journal = Journal(self._folder.journal, _log, at=self._lock.at)
        self._workers = CrewView(self._posts)
        workers = self._workers
        self._engines = Engines(
            config.workers, workers.tag, self._ledger, up_of=workers.up, served=workers.served
        )
        self._devices = DeviceWatch(source, self._ledger)
        books = self._folder, self._ledger, self._fullness
        found = attaching(config, layout, *books, self._devices, self._engines)
        self._roster = Roster(self._engines, found, config.intervals.pages_seconds)
        self._router = Gate(config, config.router, self._folder) if config.router else None
        name = " in ".join(filter(None, (config.node, config.cluster)))
        self._front = Front(config.listen, config.bridges, name, lambda: self._pulse.age_seconds())
        self._succession = Succession(
            self._folder,
            self._ledger,
            self._fullness,
            devices=lambda: (*layout.devices, *self._roster.devices()),
            names=lambda: self._roster.names,
            at=self._lock.at,
            digests={name: partial(workers.command_digest, name) for name in self._posts},
            log=_log,
        )
        self._pulse = Pulse(
            self._ledger,
            self._fullness,
            self._roster,
            self._devices,
            layout.devices,
            aside=self._aside,
            show=self._front.show,
            watched=lambda: self._front.is_watched,
            seldom=self._seldom,
            sourcing=self._succession.sourcing,
            inherit=self._succession.learned.inherit,
            save=self._succession.save,
            gpu_price=config.price,
        )
        self._parts = Parts(_log)
        self._callbacks = CallbackErrors(_log)
        self._changes = ChangeReports(self._changed, _log)
        self._rotation: Rotation | None = None
        self._folder_watch: RunDirWatch | None = None
        self._at_end: AtEnd = "stop"
        self._ending = False
        self._control = ControlService(config.node, self._folder, _log)
        self._hook = failure_hook(config, self._folder.hook_log, os.environ, _log)

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest snapshot; None before the first."""
        return self._front.snapshot

    @property
    def ready(self) -> bool:
        """Whether all engines are ready."""
        return self._engines.all_ready

    @property
    def is_well(self) -> bool:
        """Whether its books are advanced and its workers looked at; else it is better replaced."""
        patience = _SILENT_SECONDS + self._config.intervals.health_seconds
        return (
            self._pulse.age_seconds() < _SILENT_SECONDS
            and self._workers.unwatched_seconds < patience
        )

    @property
    def on_sigterm(self) -> AtEnd:
        """What the node file says SIGTERM means."""
        return self._config.on_sigterm

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ListenAddress]:
        """Run everything; yield the address of the metrics page; on leaving, end everything.

        Engines that a daemon before us left in the run folder are adopted, not started.

        Raises:
            RunLockError: Another daemon runs in the run folder; nothing was touched.
            ConfigError: The web-config file cannot be used; no engine was started.
            ListenError: The metrics address cannot be listened on; no engine was started.
            StepsSocketError: A steps socket cannot be made; no engine was started.
            StuckWorkersError: On leaving, some workers could not be ended.
        """
        async with contextlib.AsyncExitStack() as stack:
            lock = stack.enter_context(self._lock)
            make_inner(self._folder.sim)
            make_inner(self._folder.logs)
            start_ns = time.monotonic_ns()
            self._resume(lock, start_ns)
            # Not before: one that dies in between leaves checkpoint and lock as they were.
            lock.sign()
            for device in self._layout.devices:
                self._ledger.add_device(device, start_ns)
            stack.callback(self._hand_over)
            address = stack.enter_context(self._front.running())
            listen = self._config.listen
            word = stack.enter_context(leaving(self._folder.whereabouts, address, listen))
            feeds = hearing(
                self._posts.values(), self._engines, self._folder, self._ledger, self._fullness
            )
            stack.enter_context(feeds)
            looking = self._devices.running(self._config.intervals.devices_seconds)
            stack.enter_context(looking)
            crew = self._workers.crew = Crew(
                (*([self._router.post] if self._router else []), *self._posts.values()),
                self._changes.take,
                self._roster.pages.page,
                journal=self._journal,
                health_seconds=self._config.intervals.health_seconds,
                worked_ns=self._worked_ns,
                on_failure=self._hook.tell,
                groups=ControlGroups(*group_root(), _log),
                child_environment=partial(child_environment, os.environ),
            )
            limit, writers = self._config.log_megabytes, crew.writers
            rotation = self._rotation = Rotation(
                crew.logs, crew.log_was_cut, limit, _log, writers=writers
            )
            watch = self._folder_watch = RunDirWatch(
                self._folder.path,
                (self._folder.logs, self._folder.sim),
                (("lock", lock), ("journal", self._journal), ("whereabouts", word)),
                _log,
                (lock.answer, crew.record),
            )
            self._succession.learned.read()
            parts = [
                *self._roster.parts(),
                Part("main_loop", self._pulse.run),
                Part("log_rotation", rotation.run),
                Part("run_folder", watch.run),
                Part("learned", self._succession.learned.run),
                Part("failure_hook", self._hook.run),
            ]
            if self._router is not None:
                parts.append(Part("router", self._router.watch.run))
            self._callbacks.watch(asyncio.get_running_loop())
            await stack.enter_async_context(self._parts.running(parts))
            at_end = self._on_failure
            try:
                crew.adopt(self._journal.read())
                if not self._ending:
                    await crew.start()
                await stack.enter_async_context(self._control.serving(crew))
                yield address
                at_end = self._at_end
            finally:
                await self._end(crew, at_end)

    def reload(self) -> None:
        """While it serves: look anew at what may change under it, which is the web-config file."""
        self._front.reload()

    def ending(self) -> None:
        """Take that it is about to end: it starts nothing that does not run yet."""
        self._ending = True

    def leave(self) -> None:
        """While it serves: let the engines go on alone when it ends."""
        self._at_end = "leave"

    async def hurry(self) -> None:
        """While it is leaving: wait for no more requests."""
        crew = self._workers.crew
        if crew is not None and self._at_end == "stop":
            await crew.stop(drain=False)

    def _resume(self, lock: RunLock, now_ns: int) -> None:
        """Go on with the accounting of the daemon before."""
        before = self._succession.resume(lock, self._layout.devices, now_ns)
        if before is not None:
            self._roster.resume(before.names)
            self._pulse.resume(before.wall_offset_seconds)

    def _hand_over(self) -> None:
        """Leave the accounting to the next daemon."""
        now_ns = time.monotonic_ns()
        self._succession.finish(now_ns, self._pulse.wall_offset_seconds(now_ns))

    async def _end(self, crew: Crew, at_end: AtEnd) -> None:
        self._control.refuse()
        self._succession.learned.end()
        if at_end == "leave":
            await crew.leave()
            _log.info("the engines go on; `disagg-node stop --workers` ends them")
            return
        left = await crew.stop()
        if left:
            raise stuck({worker: crew.pid(worker) for worker in left})

    def _changed(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, why: str
    ) -> None:
        """Pass a change of a worker on to those it concerns."""
        if self._router is not None and name == self._router.post.name:
            self._router.changed(pid)
        else:
            self._engines.changed(name, old, new, pid, why)
        self._control.changed()

    def _worked_ns(self, worker: str) -> int | None:
        """When a worker's engine is known to have worked; a router tells no work."""
        is_router = self._router is not None and worker == self._router.post.name
        return None if is_router else self._engines.worked_ns(worker, self._roster.pages)

    def _seldom(self) -> None:
        """Look for engines that have gone silent; try a journal again that could not be written."""
        self._changes.try_again()
        names = [status.engine for status in self._roster.statuses()]
        self._succession.look(names, time.monotonic_ns())
        self._workers.keep_up()
        self._engines.listen_for_silence(self._roster.pages)

    def _aside(self) -> Aside:
        watch = self._router.watch if self._router else None
        return Aside(
            workers=self._workers.statuses(),
            collectors=(
                self._journal.status(),
                *self._beside(),
                *self._workers.collectors(),
                *self._succession.collectors(),
                *self._front.collectors(),
                *(watch.collectors() if watch else ()),
                *(self._rotation.collectors() if self._rotation else ()),
                *((self._folder_watch.status(),) if self._folder_watch else ()),
                *self._changes.collectors(),
                *self._parts.collectors(),
                *self._callbacks.collectors(),
                *self._control.collectors(),
                *self._hook.collectors(),
            ),
            router=watch.status() if watch else None,
            simulated=self._source.name == "sim" or self._engines.simulated,
            counts=DaemonCounts(
                self._control.counts(),
                self._front.http_refusals(),
                self._folder_watch.restored if self._folder_watch else 0,
                self._hook.counts(),
            ),
        )
