"""The node daemon: the one place where the parts meet.

It opens the metrics page and the steps sockets before it starts an engine, so that nothing an
engine does goes unseen; it ends the engines before it closes them, or leaves them to the next
daemon. Decisions are made elsewhere.
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
from disagg_cluster.daemon.rereading import NodeFileAgain
from disagg_cluster.daemon.roster import WorkerRoster
from disagg_cluster.host.files.private_files import make_inner
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.supervisor.process.death_watch import stuck
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.model import CollectorStatus, Snapshot

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
        file: The node file, to be read again on request; None if there is none.
        as_started: What the options of the start say in place of what a file says.
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
        self._file = NodeFileAgain(file, config, self._roster, as_started)
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
        """Whether its books are advanced and its workers looked at; else it is better replaced."""
        patience = _SILENT_SECONDS + self._config.intervals.health_seconds
        return (
            self._parts.main_loop.age_seconds() < _SILENT_SECONDS
            and self._parts.workers.unwatched_seconds < patience
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
        parts = self._parts
        async with contextlib.AsyncExitStack() as stack:
            lock = stack.enter_context(parts.lock)
            make_inner(parts.folder.sim)
            make_inner(parts.folder.logs)
            start_ns = time.monotonic_ns()
            self._resume(lock, start_ns)
            # Not before: one that dies in between leaves checkpoint and lock as they were.
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
            crew = parts.make_supervisor()
            parts.succession.learned.read()
            parts.callbacks.watch(loop)
            background = parts.background.running(parts.background_tasks())
            await stack.enter_async_context(background)
            at_end = self._on_failure
            try:
                entries = parts.journal.read()
                # Before the workers: each goes on, or is started, in the role that it was given.
                parts.moving.reassigner.adopt(crew, entries, parts.journal.assignments)
                crew.adopt(entries)
                if not self._ending:
                    await crew.start()
                await stack.enter_async_context(
                    parts.control.serving(
                        crew,
                        parts.moving.reassigner,
                        self._file.read,
                        parts.remote.serving,
                        self._file.freshness,
                    )
                )
                yield address
                at_end = self._at_end
            finally:
                await self._end(crew, at_end)

    @property
    def attach(self) -> Attach | None:
        """Where it looks for engines that others start; None if nowhere."""
        return self._config.attach

    @property
    def worker_states(self) -> Mapping[str, str]:
        """In which state each of its workers is just now; none before they are launched."""
        crew = self._parts.workers.supervisor
        return {} if crew is None else {w.spec.name: w.life.state for w in crew.snapshots()}

    @property
    def drain_seconds(self) -> float:
        """How long its workers may finish their requests when it ends."""
        specs = self._parts.specs.values()
        return max((spec.policy.drain_seconds for spec in specs), default=0.0)

    def reload(self) -> None:
        """While it serves: look anew at what may change under it, which is the web-config file."""
        self._parts.metrics.reload()
        self._parts.remote.reload()

    def ending(self) -> None:
        """Take that it is about to end: it starts nothing that does not run yet."""
        self._ending = True

    def leave(self) -> None:
        """While it serves: let the engines go on alone when it ends."""
        self._at_end = "leave"

    async def hurry(self) -> None:
        """While it is leaving: wait for no more requests."""
        crew = self._parts.workers.supervisor
        if crew is not None and self._at_end == "stop":
            await crew.stop(drain=False)

    def _resume(self, lock: RunLock, now_ns: int) -> None:
        """Go on with the accounting of the daemon before."""
        before = self._parts.succession.resume(lock, self._layout.devices, now_ns)
        if before is not None:
            self._parts.names.resume(before.names)
            self._parts.main_loop.resume(before.wall_offset_seconds)

    def _hand_over(self) -> None:
        """Leave the accounting to the next daemon."""
        offset_seconds = self._parts.main_loop.wall_offset_seconds()
        self._parts.succession.finish(time.monotonic_ns(), offset_seconds)

    async def _end(self, crew: Supervisor, at_end: AtEnd) -> None:
        self._parts.control.refuse()
        await self._roster.close()
        self._parts.succession.learned.end()
        if at_end == "leave":
            await crew.leave()
            _log.info("the engines go on; `disagg-node stop --workers` ends them")
            return
        left = await crew.stop()
        if left:
            raise stuck({worker: crew.pid(worker) for worker in left})
