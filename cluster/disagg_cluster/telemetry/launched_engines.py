"""Launched engines: turns changes of the workers' processes into records of the registry."""

from __future__ import annotations

import contextlib
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from disagg_cluster.config import Worker
from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.state import WorkerIdentity, WorkerState
from disagg_cluster.telemetry.engine_registry import (
    LINGER_SECONDS,
    EngineRecord,
    EngineRegistry,
    Origin,
    unknown_engine,
)
from disagg_cluster.telemetry.pages.engine_tls import EngineTlsServer
from disagg_cluster.telemetry.snapshot import ENGINE_STATES
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_cluster.telemetry.steps.step_source import EngineFeeds
from disagg_exporter.capacity.compute_rates import size_from_config
from disagg_exporter.model import Device, EngineState, ModelSize
from disagg_exporter.roles.command_line.limits import step_limits

MAX_CONFIG_BYTES = 1024 * 1024
_OTHER_TYPES = ("--dtype", "--quantization", "-q", "--kv-cache-dtype", "--hf-overrides")
"""Arguments by which an engine loads something other than the folder's `config.json` states."""


def model_size(worker: Worker) -> ModelSize | None:
    """Return the size by the model's `config.json`; None where something else is loaded."""
    if worker.engine == "standin" or any(
        _names_other_type(argument) for argument in worker.arguments
    ):
        return None
    try:
        with (Path(worker.model) / "config.json").open("rb") as file:
            config = parse_foreign(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return None
    return size_from_config(config) if isinstance(config, dict) else None


def _names_other_type(argument: str) -> bool:
    return argument.partition("=")[0].replace("_", "-") in _OTHER_TYPES


@dataclass(slots=True, kw_only=True)
class LaunchedEngine(EngineRecord):
    """One worker's engine; its `pid` is the leader of its session, None without a process.

    Its `tls` and all of its `status` describe the process as it was started: an adopted one may
    differ from the node file.
    """

    worker: Worker
    size: ModelSize | None = None
    worker_state: WorkerState = WorkerState.STOPPED

    @property
    def ready(self) -> bool:
        """Whether it can serve, also if it is drained by hand."""
        return self.worker_state is WorkerState.READY and self.status.pid is not None


class LaunchedEngines:
    """Turns the supervisor's reports into records of the registry.

    Engines of workers that were let go stay there as gone for a while (`LINGER_SECONDS`).

    Args:
        workers: The node file's workers.
        identity_of: The identity with which a worker's present process was started, or would be.
        registry: Where the records go; each change is reported to the ledger.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        workers: tuple[Worker, ...],
        identity_of: Callable[[str], WorkerIdentity],
        registry: EngineRegistry,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._identity_of = identity_of
        self._registry = registry
        self._clock_ns = clock_ns
        self._engines = {worker.name: self._record(worker) for worker in workers}
        self._let_go_ns: dict[str, int] = {}
        self._drained: frozenset[str] = frozenset()
        self._steps = EngineFeeds[StepFeed]()
        registry.records.update(self._engines)
        registry.sources.add(self._steps)

    @contextlib.contextmanager
    def receiving(self, feeds: Mapping[str, StepFeed], loop: AbstractEventLoop) -> Iterator[None]:
        """Receive the steps of each worker's engine through its feed until the block ends.

        Raises:
            StepsSocketError: A socket cannot be made.
        """
        with contextlib.closing(self._steps):
            for name, feed in feeds.items():
                feed.open(loop)
                self._steps.feeds[name] = feed
            yield

    def add(self, worker: Worker, feed: StepFeed | None) -> None:
        """Add a worker that is about to be started; receive its steps through an open feed."""
        self._let_go_ns.pop(worker.name, None)
        self._engines[worker.name] = self._registry.records[worker.name] = self._record(worker)
        if feed is not None:
            self._steps.feeds[worker.name] = feed

    def let_go(self, name: str, device: Device | None = None) -> None:
        """Record that a worker has ended for good; `device` is its now unused pseudo-device."""
        engine, now_ns = self._engines.pop(name), self._clock_ns()
        engine.status = replace(engine.status, state=EngineState.GONE, pid=None)
        engine.serving, engine.pseudo = False, device
        self._registry.assign(engine, now_ns)
        self._steps.forget(name)
        self._let_go_ns[name] = now_ns

    def forget_the_gone(self) -> None:
        """Drop the engines whose workers were let go `LINGER_SECONDS` ago."""
        now_ns = self._clock_ns()
        for name, gone_ns in tuple(self._let_go_ns.items()):
            if now_ns - gone_ns >= LINGER_SECONDS * 1e9:
                del self._let_go_ns[name]
                self._registry.forget(name)

    def pid(self, name: str) -> int | None:
        """Return the pid of the engine's process."""
        return self._engines[name].status.pid

    @property
    def all_ready(self) -> bool:
        """Whether every engine is ready."""
        return all(engine.ready for engine in self._engines.values())

    @property
    def simulated(self) -> bool:
        """Whether any engine reports that it is a stand-in."""
        return any(feed.simulated for feed in self._steps.feeds.values())

    def changed(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, _why: str
    ) -> None:
        """Record what a worker's change means for its engine (an `OnChange`)."""
        engine, feed, now_ns = self._engines[name], self._steps.feeds.get(name), self._clock_ns()
        if engine.status.pid not in (None, pid):
            self._steps.drain(name)
            engine.status = replace(engine.status, state=EngineState.GONE)
            self._registry.assign(engine, now_ns)
        if pid is not None and engine.status.pid != pid:
            if feed is not None:
                # Not earlier, when the previous process ended: the page still shows that stand-in.
                feed.begin()
            self._identify(engine)
            self._inspect(engine, pid)
            # An adopted engine may serve already; it reports steps once its plugin finds us.
            engine.ready_ns = now_ns
        if new is WorkerState.READY and old is not WorkerState.READY:
            engine.ready_ns = now_ns
            if pid is not None:
                # At its start it may not have had its command line yet.
                self._inspect(engine, pid)
        engine.serving = new in (WorkerState.READY, WorkerState.DRAINING)
        engine.tls = replace(engine.tls, pid=pid)
        engine.worker_state = new
        engine.status = replace(engine.status, state=self._state(name, pid), pid=pid)
        if pid is None:
            engine.status = replace(engine.status, start_timestamp_seconds=None)
        if pid is not None:
            self._registry.assign(engine, now_ns)

    def set_drained(self, names: Iterable[str]) -> None:
        """Record which workers are drained by hand: meanwhile their engines serve no pool."""
        self._drained = frozenset(names)
        for name, engine in self._engines.items():
            state = self._state(name, engine.status.pid)
            if state is not engine.status.state:
                engine.status = replace(engine.status, state=state)
                self._registry.assign(engine, self._clock_ns())

    def switched(self, name: str) -> None:
        """Record that an engine has switched role in the same process."""
        engine = self._engines[name]
        self._identify(engine)
        self._registry.assign(engine, self._clock_ns())

    def worked_ns(self, name: str) -> int | None:
        """Return an instant at or after which an engine worked, by its steps and its pages."""
        feed = self._steps.feeds.get(name)
        known = (feed.worked_ns if feed else None, self._registry.pages.state(name).worked_ns)
        return max((t_ns for t_ns in known if t_ns is not None), default=None)

    def check_step_silence(self) -> None:
        """Log why an engine's steps are not received, once when that begins and when it ends."""
        for name, feed in self._steps.feeds.items():
            engine = self._engines[name]
            if engine.ready and engine.ready_ns is not None:
                window = self._registry.pages.state(name).window
                advancing = None if window is None else window.tokens_advanced
                feed.check_silence((self._clock_ns() - engine.ready_ns) / 1e9, advancing)

    def _state(self, name: str, pid: int | None) -> EngineState:
        if pid is None:
            return EngineState.GONE
        state = ENGINE_STATES[self._engines[name].worker_state]
        by_hand = state is EngineState.READY and name in self._drained
        return EngineState.DRAINING if by_hand else state

    def _record(self, worker: Worker) -> LaunchedEngine:
        status = unknown_engine(worker.name, worker.engine, "config", "certain")
        engine = LaunchedEngine(
            origin=Origin.LAUNCHED, status=status, worker=worker, size=model_size(worker)
        )
        self._identify(engine)
        return engine

    def _inspect(self, engine: LaunchedEngine, pid: int) -> None:
        """Record when a process started, and its step limits."""
        engine.status = replace(
            engine.status,
            start_timestamp_seconds=procfs.start_timestamp_seconds(pid),
            limits=step_limits(procfs.command_line(pid)),
        )

    def _identify(self, engine: LaunchedEngine) -> None:
        """Record the identity with which the engine's process was started."""
        worker, identity = engine.worker, self._identity_of(engine.worker.name)
        engine.url, engine.ranks = identity.url, identity.ranks
        engine.tls = EngineTlsServer(worker.tls, identity.certificate_file or "")
        engine.status = replace(
            engine.status,
            role=identity.role,
            model_name=identity.model_name,
            devices=identity.gpus,
            model_size=engine.size if identity.model_name == worker.model_name else None,
        )
