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
from disagg_cluster.command import build
from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.layout import Layout
from disagg_cluster.life import Policy, WorkerState
from disagg_cluster.nodeview import ENGINE_STATES, DeviceLook, compose
from disagg_cluster.pagewatch import PageWatch
from disagg_cluster.posts import Post
from disagg_cluster.readiness import Target
from disagg_cluster.stepfeed import StepFeed
from disagg_cluster.workers import Crew
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices import DeviceSource
from disagg_exporter.listen import ListenAddress, parse_listen
from disagg_exporter.model import (
    Assignment,
    DeviceSweep,
    EngineState,
    EngineStatus,
    Snapshot,
)
from disagg_exporter.sampler import Sampler
from disagg_exporter.server import MetricsServer

# How often the fast gauges are made anew, and every how many of these the books are advanced.
TICK_SECONDS = 0.25
TICKS_TO_ADVANCE = 4
SILENCE_SECONDS = 5.0

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
        self._source = source
        self._run_folder = run_folder
        self._workers = {worker.name: worker for worker in config.workers}
        placed = {place.worker: place for place in layout.placements}
        self._gpus = {name: place.gpus for name, place in placed.items()}
        self._devices = tuple(
            {d.gpu: d for place in layout.placements for d in place.devices}.values()
        ) + tuple(layout.free)
        self._ledger = Ledger()
        self._pids: dict[str, int] = {}
        self._states: dict[str, WorkerState] = {}
        self._ready_ns: dict[str, int] = {}
        self._silences: dict[str, str | None] = {}
        self._look = DeviceLook(source.name)
        self._snapshot: Snapshot | None = None
        self._tick_ns = time.monotonic_ns()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands = {
            name: build(
                worker,
                placed[name],
                steps_socket=run_folder / f"{name}.sock",
                engine_side_folder=engine_side_folder(),
                sim_folder=run_folder / "sim",
            )
            for name, worker in self._workers.items()
        }
        self._feeds = {
            name: StepFeed(
                name,
                run_folder / f"{name}.sock",
                self._ledger,
                lambda name=name: self._pids.get(name),  # type: ignore[misc]
                self._commands[name].env,
            )
            for name in self._workers
        }
        self._pages = PageWatch(
            {name: f"http://127.0.0.1:{worker.port}" for name, worker in self._workers.items()},
            config.intervals.pages_seconds,
            lambda name: self._states.get(name) in (WorkerState.READY, WorkerState.DRAINING),
        )
        self._crew: Crew | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest snapshot; None before the first."""
        return self._snapshot

    @property
    def ready(self) -> bool:
        """Whether all workers are ready."""
        return all(self._states.get(name) is WorkerState.READY for name in self._workers)

    @property
    def failed(self) -> tuple[str, ...]:
        """The workers that were given up."""
        return tuple(n for n, state in self._states.items() if state is WorkerState.FAILED)

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
        for device in self._devices:
            self._ledger.add_device(device, start_ns)
        async with contextlib.AsyncExitStack() as stack:
            server = MetricsServer(
                parse_listen(self._config.listen.metrics),
                lambda: self._snapshot,
                lambda: "" if self._snapshot else "nothing was measured yet",
                lambda: (time.monotonic_ns() - self._tick_ns) / 1e9,
            )
            address = server.start()
            stack.callback(server.close)
            for feed in self._feeds.values():
                feed.open(self._loop)
                stack.callback(feed.close)
            sampler = Sampler(
                self._source, self._config.intervals.devices_seconds, self._swept_elsewhere
            )
            sampler.start()
            stack.callback(sampler.stop)
            self._crew = Crew(
                [self._post(worker) for worker in self._workers.values()],
                self._changed,
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

    def _post(self, worker: Worker) -> Post:
        deadlines = worker.deadlines
        return Post(
            worker.name,
            self._commands[worker.name],
            self._run_folder / "logs" / f"{worker.name}.log",
            Target(worker.port, worker.model_name),
            Policy(
                start_seconds=deadlines.start_seconds,
                drain_seconds=deadlines.drain_seconds,
                stop_seconds=deadlines.stop_seconds,
            ),
        )

    async def _tick(self) -> None:
        ticks, said_ns = 0, 0
        while True:
            now_ns = self._tick_ns = time.monotonic_ns()
            if ticks % TICKS_TO_ADVANCE == 0:
                self._ledger.advance(now_ns)
            if now_ns - said_ns > SILENCE_SECONDS * 1e9:
                said_ns = now_ns
                self._listen_for_silence(now_ns)
            self._snapshot = self._compose(now_ns)
            ticks += 1
            await asyncio.sleep(TICK_SECONDS)

    def _compose(self, now_ns: int) -> Snapshot:
        feeds = [
            feed.status(self._silences.get(name))
            for name, feed in self._feeds.items()
            if name in self._pids
        ]
        return compose(
            self._ledger,
            now_ns,
            time.time(),
            devices=self._devices,
            look=self._look,
            engines=[self._engine(worker) for worker in self._workers.values()],
            workers=self._crew.statuses() if self._crew else (),
            collectors=[*feeds, *self._pages.statuses()],
            simulated=self._source.name == "sim"
            or any(feed.simulated for feed in self._feeds.values()),
        )

    def _engine(self, worker: Worker) -> EngineStatus:
        name = worker.name
        state = self._states.get(name, WorkerState.STOPPED)
        here = name in self._pids
        return EngineStatus(
            engine=name,
            role=worker.role,
            kind=worker.engine,
            version=self._pages.version(name),
            model_name=worker.model_name,
            devices=self._gpus[name],
            state=ENGINE_STATES[state] if here else EngineState.GONE,
            up=here and state is WorkerState.READY,
            source="config",
            confidence="certain",
            page=self._pages.page(name),
        )

    def _changed(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, why: str
    ) -> None:
        """Take a change of a worker: say it, and tell the ledger what it means."""
        now_ns = time.monotonic_ns()
        level = (
            logging.WARNING if new in (WorkerState.BACKOFF, WorkerState.FAILED) else logging.INFO
        )
        _log.log(level, "%s: %s → %s: %s", name, old, new, why)
        known = self._pids.get(name)
        if known is not None and known != pid:
            self._feeds[name].drain()
            self._assign(name, EngineState.GONE, now_ns)
            del self._pids[name]
        self._states[name] = new
        if pid is None:
            return
        if known != pid:
            self._feeds[name].begin()
        self._pids[name] = pid
        if new is WorkerState.READY and old is not WorkerState.READY:
            self._ready_ns[name] = now_ns
        self._assign(name, ENGINE_STATES[new], now_ns)

    def _assign(self, name: str, state: EngineState, now_ns: int) -> None:
        worker = self._workers[name]
        self._ledger.assign(
            Assignment(
                engine=name,
                role=worker.role,
                devices=self._gpus[name],
                state=state,
                since_ns=now_ns,
                pids=(self._pids[name],),
                model_name=worker.model_name,
            )
        )

    def _listen_for_silence(self, now_ns: int) -> None:
        for name, feed in self._feeds.items():
            if self._states.get(name) is not WorkerState.READY:
                continue
            seen = self._pages.window(name)
            rates = (
                (seen.computed_tokens_per_second, seen.generation_tokens_per_second) if seen else ()
            )
            advancing = any(rate > 0 for rate in rates if rate is not None) if seen else None
            ready_seconds = (now_ns - self._ready_ns[name]) / 1e9
            silence = feed.silence(ready_seconds, advancing)
            if silence != self._silences.get(name):
                _log.warning("%s: %s", name, silence or "steps are heard again")
                self._silences[name] = silence

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
