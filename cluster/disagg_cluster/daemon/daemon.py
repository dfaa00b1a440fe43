"""The node daemon: connects the parts and runs them.

It opens the metrics page and the steps sockets before it starts an engine, so that all of its work
is measured, and ends the engines, or leaves them to the next daemon, before it closes them.
Decisions are made in other modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Literal

from disagg_cluster.config import Attach, NodeConfig
from disagg_cluster.config.layout import Layout
from disagg_cluster.daemon.composition import Composition
from disagg_cluster.daemon.endpoint_file import EndpointFile
from disagg_cluster.daemon.held_gpus import with_unrecorded
from disagg_cluster.daemon.node_file_reloader import NodeFileReloader
from disagg_cluster.daemon.roster import WorkerRoster
from disagg_cluster.host.files.private_files import make_inner
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.supervisor.process.death_watch import stuck
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.model import CollectorStatus, Snapshot

_log = logging.getLogger("disagg_node")

_SILENT_SECONDS = 10.0  # The daemon is unhealthy if its loop has not run for this long.

AtEnd = Literal["stop", "leave"]
"""What happens to the engines: drained and stopped, or left running for the next daemon."""


class Daemon:
    """One node's daemon; created and run once.

    Args:
        config: The node file.
        layout: The devices of each worker.
        source: The devices; closed by the caller.
        run_folder: For sockets, journal and logs; created if missing.
        on_failure: What happens to the engines if the daemon itself fails.
        beside: Collectors of parts outside the daemon, for the metrics page.
        file: The node file, to be read again on request; None if there is none.
        as_started: Applies the options of `start` that override the file.
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
        file: Path | None = None,
        as_started: Callable[[NodeConfig], NodeConfig] = lambda config: config,
    ) -> None:
        self._config = config
        self._layout = layout
        self._on_failure = on_failure
        self._parts = Composition(config, layout, source, run_folder, beside)
        self._roster = WorkerRoster(self._parts, config)
        self._file = NodeFileReloader(file, config, self._roster, as_started)
        self._at_end: AtEnd = "stop"
        self._ending = False

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest snapshot; None before the first."""
        return self._parts.metrics.snapshot

    @property
    def ready(self) -> bool:
        """Whether all engines are ready."""
        return self._parts.engines.all_ready

    @property
    def is_well(self) -> bool:
        """Whether accounting and supervision keep running; otherwise it should be restarted."""
        patience = _SILENT_SECONDS + self._config.intervals.health_seconds
        return (
            self._parts.main_loop.age_seconds() < _SILENT_SECONDS
            and self._parts.workers.unwatched_seconds < patience
        )

    @property
    def on_sigterm(self) -> AtEnd:
        """What SIGTERM does, from the node file."""
        return self._config.on_sigterm

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ListenAddress]:
        """Run everything; yields the address of the metrics page; on exit, end everything.

        Engines that an earlier daemon left in the run folder are adopted, not started.

        Raises:
            RunLockError: Another daemon runs in the run folder; nothing was touched.
            ConfigError: The web-config file cannot be used; no engine was started.
            ListenError: The metrics address cannot be listened on; no engine was started.
            StepsSocketError: A steps socket cannot be created; no engine was started.
            StuckWorkersError: On exit, some workers could not be ended.
        """
        parts = self._parts
        async with contextlib.AsyncExitStack() as stack:
            lock = stack.enter_context(parts.lock)
            make_inner(parts.folder.sim)
            make_inner(parts.folder.logs)
            start_ns = time.monotonic_ns()
            self._resume(lock, start_ns)
            # Signed only now: a daemon that dies before this point leaves checkpoint and lock
            # unchanged.
            lock.sign()
            for device in self._layout.devices:
                parts.ledger.add_device(device, start_ns)
            stack.callback(self._hand_over)
            address = stack.enter_context(parts.metrics.running())
            stack.enter_context(parts.remote.prepared())
            listen = self._config.listen
            word = stack.enter_context(EndpointFile(parts.folder.whereabouts, address, listen))
            parts.folder_watch.keep("whereabouts", word)
            loop = asyncio.get_running_loop()
            stack.enter_context(parts.engines.receiving(parts.step_feeds(), loop))
            looking = parts.devices.running(self._config.intervals.devices_seconds)
            stack.enter_context(looking)
            supervisor = parts.make_supervisor()
            parts.succession.learned.read()
            parts.callbacks.watch(loop)
            background = parts.background.running(parts.background_tasks())
            await stack.enter_async_context(background)
            at_end = self._on_failure
            try:
                entries = parts.journal.read()
                # Before the workers, so that each continues or starts in its assigned role.
                parts.moving.reassigner.adopt(supervisor, entries, parts.journal.assignments)
                specs = [each.spec for each in supervisor.snapshots()]
                devices = self._layout.devices
                supervisor.adopt(with_unrecorded(entries, specs, parts.folder, devices))
                if not self._ending:
                    await supervisor.start()
                await stack.enter_async_context(
                    parts.control.serving(
                        supervisor,
                        parts.moving.reassigner,
                        self._file.read,
                        parts.remote.serving,
                        self._file.freshness,
                    )
                )
                yield address
                at_end = self._at_end
            finally:
                await self._end(supervisor, at_end)

    @property
    def attach(self) -> Attach | None:
        """Where it discovers engines it did not launch; None if nowhere."""
        return self._config.attach

    @property
    def worker_states(self) -> Mapping[str, str]:
        """The current state of each worker; empty before they are launched."""
        supervisor = self._parts.workers.supervisor
        return (
            {}
            if supervisor is None
            else {w.spec.name: w.life.state for w in supervisor.snapshots()}
        )

    @property
    def drain_seconds(self) -> float:
        """How long its workers may finish their requests when it ends."""
        specs = self._parts.specs.values()
        return max((spec.policy.drain_seconds for spec in specs), default=0.0)

    def reload(self) -> None:
        """Reload the web-config files while serving."""
        self._parts.metrics.reload()
        self._parts.remote.reload()

    def ending(self) -> None:
        """Announce that it is about to end: nothing more is started."""
        self._ending = True

    def leave(self) -> None:
        """Leave the engines running when it ends; call while it serves."""
        self._at_end = "leave"

    async def hurry(self) -> None:
        """Stop waiting for running requests; call while it is ending."""
        supervisor = self._parts.workers.supervisor
        if supervisor is not None and self._at_end == "stop":
            await supervisor.stop(drain=False)

    def _resume(self, lock: RunLock, now_ns: int) -> None:
        """Resume the accounting of the previous daemon."""
        before = self._parts.succession.resume(lock, self._layout.devices, now_ns)
        if before is not None:
            self._parts.names.resume(before.names)
            self._parts.main_loop.resume(before.wall_offset_seconds)

    def _hand_over(self) -> None:
        """Save the accounting for the next daemon."""
        offset_seconds = self._parts.main_loop.wall_offset_seconds()
        self._parts.succession.finish(time.monotonic_ns(), offset_seconds)

    async def _end(self, supervisor: Supervisor, at_end: AtEnd) -> None:
        self._parts.control.refuse()
        await self._roster.close()
        self._parts.succession.learned.end()
        if at_end == "leave":
            await supervisor.leave()
            _log.info("the engines go on; `disagg-node stop --workers` ends them")
            return
        left = await supervisor.stop()
        if left:
            raise stuck({worker: supervisor.pid(worker) for worker in left})
