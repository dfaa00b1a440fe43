"""The node daemon: the one place where the parts meet.

It opens the metrics page and the steps sockets before it starts an engine, so that nothing an
engine does goes unseen; it ends the engines before it closes them. Decisions are made elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from disagg_cluster.assets import engine_side_folder
from disagg_cluster.command import Command, build
from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.engines import Engines
from disagg_cluster.layout import Layout
from disagg_cluster.life import Policy
from disagg_cluster.nodeview import DeviceLook, WallClock, compose
from disagg_cluster.pagewatch import PageWatch
from disagg_cluster.posts import Post
from disagg_cluster.readiness import Target
from disagg_cluster.stepfeed import StepFeed
from disagg_cluster.workers import Crew
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices import DeviceSource
from disagg_exporter.listen import ListenAddress
from disagg_exporter.model import DeviceSweep, Snapshot
from disagg_exporter.sampler import Sampler
from disagg_exporter.server import MetricsServer

# How often the fast gauges are made anew, every how many of these the books are advanced, and
# how often silent engines are looked for.
TICK_SECONDS = 0.25
ADVANCE_TICKS = 4
SILENCE_TICKS = 20

_log = logging.getLogger("disagg_node")


class Daemon:
    """One node's daemon; made and run once.

    Args:
        config: The node file.
        layout: Who has which device.
        source: The devices; closed by the caller.
        run_folder: For sockets and logs; made if it is not there.
    """

    def __init__(
        self, config: NodeConfig, layout: Layout, source: DeviceSource, run_folder: Path
    ) -> None:
        self._config = config
        self._layout = layout
        self._source = source
        self._run_folder = run_folder
        self._ledger = Ledger()
        self._engines = Engines(
            config.workers, {w.name: layout.of(w.name).gpus for w in config.workers}, self._ledger
        )
        self._pages = PageWatch(
            {worker.name: f"http://127.0.0.1:{worker.port}" for worker in config.workers},
            config.intervals.pages_seconds,
            self._engines.answers,
        )
        self._look = DeviceLook(source.name)
        self._wall = WallClock()
        self._snapshot: Snapshot | None = None
        self._tick_ns = time.monotonic_ns()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crew: Crew | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest snapshot; None before the first."""
        return self._snapshot

    @property
    def ready(self) -> bool:
        """Whether all engines are ready."""
        return self._engines.all_ready

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ListenAddress]:
        """Run everything; yield the address of the metrics page; on leaving, end everything.

        Raises:
            ListenError: The metrics address cannot be listened on; no engine was started.
            StepsSocketError: A steps socket cannot be made; no engine was started.
        """
        self._loop = asyncio.get_running_loop()
        self._run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._run_folder / "sim").mkdir(exist_ok=True)
        start_ns = time.monotonic_ns()
        for device in self._layout.devices:
            self._ledger.add_device(device, start_ns)
        async with contextlib.AsyncExitStack() as stack:
            server = MetricsServer(
                self._config.listen.metrics_address,
                lambda: self._snapshot,
                lambda: "" if self._snapshot else "nothing was measured yet",
                lambda: (time.monotonic_ns() - self._tick_ns) / 1e9,
            )
            address = server.start()
            stack.callback(server.close)
            posts = [self._open_post(worker, stack, self._loop) for worker in self._config.workers]
            sampler = Sampler(
                self._source, self._config.intervals.devices_seconds, self._swept_elsewhere
            )
            sampler.start()
            stack.callback(sampler.stop)
            self._crew = Crew(
                posts,
                self._engines.changed,
                self._pages.page,
                health_seconds=self._config.intervals.health_seconds,
            )
            tasks = [asyncio.create_task(self._pages.run()), asyncio.create_task(self._tick())]
            stack.push_async_callback(_cancel, tasks)
            try:
                await self._crew.start()
                yield address
            finally:
                left = await self._crew.stop()
                if left:
                    _log.error("still there after SIGKILL: %s", ", ".join(left))

    async def hurry(self) -> None:
        """While it is leaving: wait for no more requests."""
        if self._crew is not None:
            await self._crew.stop(drain=False)

    def _open_post(
        self, worker: Worker, stack: contextlib.AsyncExitStack, loop: asyncio.AbstractEventLoop
    ) -> Post:
        """Open a worker's steps socket; return what to run and how patiently."""
        name, deadlines = worker.name, worker.deadlines
        socket = self._run_folder / f"{name}.sock"
        command: Command = build(
            worker,
            self._layout.of(name),
            steps_socket=socket,
            engine_side_folder=engine_side_folder(),
            sim_folder=self._run_folder / "sim",
        )
        feed = StepFeed(name, socket, self._ledger, lambda: self._engines.pid(name), command.env)
        feed.open(loop)
        stack.callback(feed.close)
        self._engines.hear(name, feed)
        return Post(
            name,
            command,
            self._run_folder / "logs" / f"{name}.log",
            Target(worker.port, worker.model_name),
            Policy(
                start_seconds=deadlines.start_seconds,
                drain_seconds=deadlines.drain_seconds,
                stop_seconds=deadlines.stop_seconds,
            ),
        )

    async def _tick(self) -> None:
        ticks = 0
        while True:
            now_ns = self._tick_ns = time.monotonic_ns()
            if ticks % ADVANCE_TICKS == 0:
                self._ledger.advance(now_ns)
            if ticks % SILENCE_TICKS == 0:
                self._engines.listen_for_silence(self._pages)
            self._snapshot = self._compose(now_ns)
            ticks += 1
            await asyncio.sleep(TICK_SECONDS)

    def _compose(self, now_ns: int) -> Snapshot:
        return compose(
            self._ledger,
            now_ns,
            self._wall.offset_seconds(now_ns, time.time()),
            devices=self._layout.devices,
            look=self._look,
            engines=self._engines.statuses(self._pages),
            workers=self._crew.statuses() if self._crew else (),
            collectors=(*self._engines.collectors(), *self._pages.statuses()),
            simulated=self._source.name == "sim" or self._engines.simulated,
        )

    def _swept_elsewhere(self, sweep: DeviceSweep, duration_seconds: float) -> None:
        """Bring a sweep from the sampler's thread to the loop's."""
        assert self._loop is not None
        # The loop may be closed already when the daemon ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._swept, sweep, duration_seconds)

    def _swept(self, sweep: DeviceSweep, duration_seconds: float) -> None:
        self._ledger.read(sweep)
        self._look = replace(
            self._look,
            sweep=sweep,
            duration_seconds=duration_seconds,
            success_timestamp_seconds=(
                self._look.success_timestamp_seconds if sweep.failures else time.time()
            ),
        )


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
