"""Launched engines: their processes, states, pages and steps, reported to ledger and page."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from disagg_cluster.config import Worker
from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.lifecycle.worker_identity import WorkerIdentity
from disagg_cluster.telemetry.pages.engine_tls import EngineTlsServer
from disagg_cluster.telemetry.pages.page_scraper import PageScraper
from disagg_cluster.telemetry.snapshot import ENGINE_STATES
from disagg_cluster.telemetry.source_selection import SourceCandidate
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity.compute_rates import size_from_config
from disagg_exporter.model import (
    Assignment,
    CollectorStatus,
    EngineState,
    EngineStatus,
    Method,
    ModelSize,
    Role,
)


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """An engine whose role is known anyhow: one that we launched."""

    model_name: str
    role: Role


MAX_CONFIG_BYTES = 1024 * 1024
_OTHER_TYPES = ("--dtype", "--quantization", "-q", "--kv-cache-dtype", "--hf-overrides")
"""Arguments by which an engine loads something else than the folder says."""


def model_size(worker: Worker) -> ModelSize | None:
    """Return what `config.json` in the model's folder says; None where that is not the truth."""
    if worker.engine == "standin" or any(_names_other_type(argument) for argument in worker.args):
        return None
    try:
        with (Path(worker.model) / "config.json").open("rb") as file:
            config = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return size_from_config(config) if isinstance(config, dict) else None


def _names_other_type(argument: str) -> bool:
    return argument.partition("=")[0].replace("_", "-") in _OTHER_TYPES


_log = logging.getLogger("disagg_node")


@dataclass(slots=True)
class _Engine:
    """One worker's engine; `pid` is the leader of its session, None without a process.

    `identity` says as what that process was started: one that was adopted may differ from the file.
    """

    worker: Worker
    identity: WorkerIdentity
    state: WorkerState = WorkerState.STOPPED
    pid: int | None = None
    ready_ns: int = 0
    silence: str | None = None
    feed: StepFeed | None = field(default=None, repr=False)
    size: ModelSize | None = None

    @property
    def model_size(self) -> ModelSize | None:
        """The size of what its process serves, if that is what the node file says."""
        return self.size if self.identity.model_name == self.worker.model_name else None


class LaunchedEngines:
    """Turns what the crew reports into the ledger's assignments and the page's statuses.

    Args:
        workers: The node file's workers.
        identity_of: As what the present process of a worker was started, or would be.
        ledger: Told of every change.
        up_of: Whether a worker answered its last health probe; None if nobody knows.
        served: Whether a worker that starts served before, under an earlier daemon.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        workers: tuple[Worker, ...],
        identity_of: Callable[[str], WorkerIdentity],
        ledger: Ledger,
        *,
        up_of: Callable[[str], bool | None] = lambda _name: None,
        served: Callable[[str], bool] = lambda _name: False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._up_of = up_of
        self._served = served
        self._engines = {
            w.name: _Engine(w, identity_of(w.name), size=model_size(w)) for w in workers
        }
        self._identity_of = identity_of
        self._ledger = ledger
        self._clock_ns = clock_ns

    def set_feed(self, name: str, feed: StepFeed) -> None:
        """Set through which feed an engine's steps come."""
        self._engines[name].feed = feed

    def pid(self, name: str) -> int | None:
        """Return the engine's process."""
        return self._engines[name].pid

    def pids(self) -> tuple[int, ...]:
        """Return the processes of all engines."""
        return tuple(e.pid for e in self._engines.values() if e.pid is not None)

    def peers(self) -> tuple[KnownPeer, ...]:
        """Return what the engines with a process serve, and in which role."""
        identities = (
            engine.identity for engine in self._engines.values() if engine.pid is not None
        )
        return tuple(KnownPeer(identity.model_name, identity.role) for identity in identities)

    @property
    def urls(self) -> Mapping[str, str]:
        """The roots of the engines' servers now."""
        return {name: engine.identity.url for name, engine in self._engines.items()}

    def tls_server(self, name: str) -> EngineTlsServer:
        """What is known of the TLS that an engine serves."""
        engine = self._engines[name]
        certificate_file = engine.identity.certificate_file or ""
        return EngineTlsServer(engine.worker.tls, certificate_file, engine.pid)

    def answers(self, name: str) -> bool:
        """Say whether the engine is worth asking for its page."""
        state = self._engines[name].state
        # An adopted one may serve although it has not answered a probe: its page will tell.
        goes_on = state is WorkerState.STARTING and self._served(name)
        return goes_on or state in (WorkerState.READY, WorkerState.DRAINING)

    @property
    def all_ready(self) -> bool:
        """Whether every engine is ready."""
        return all(engine.state is WorkerState.READY for engine in self._engines.values())

    @property
    def simulated(self) -> bool:
        """Whether any engine says it is a stand-in."""
        feeds = (engine.feed for engine in self._engines.values())
        return any(feed is not None and feed.simulated for feed in feeds)

    def changed(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, _why: str
    ) -> None:
        """Take a change of a worker (an `OnChange`): tell the ledger what it means."""
        engine, now_ns = self._engines[name], self._clock_ns()
        if engine.pid is not None and engine.pid != pid:
            if engine.feed is not None:
                engine.feed.drain()
            self._assign(engine, EngineState.GONE, now_ns)
        if engine.feed is not None and pid is not None and engine.pid != pid:
            engine.feed.begin()
        if engine.pid != pid:
            # The silence of the process before; of this one nobody knows yet.
            engine.silence = None
        if pid is not None and engine.pid != pid:
            engine.identity = self._identity_of(name)
            # One that was adopted may serve, and tells its steps as soon as its plugin finds us.
            engine.ready_ns = now_ns
        engine.state, engine.pid = new, pid
        if new is WorkerState.READY and old is not WorkerState.READY:
            engine.ready_ns = now_ns
        if pid is not None:
            self._assign(engine, ENGINE_STATES[new], now_ns)

    def statuses(self, pages: PageScraper) -> tuple[EngineStatus, ...]:
        """Return every engine as the page shows it."""
        return tuple(
            EngineStatus(
                engine=name,
                role=engine.identity.role,
                kind=engine.worker.engine,
                version=pages.version(name),
                model_name=engine.identity.model_name,
                devices=engine.identity.gpus,
                state=EngineState.GONE if engine.pid is None else ENGINE_STATES[engine.state],
                up=self._up(engine),
                source="config",
                confidence="certain",
                page=pages.page(name),
                pid=engine.pid,
                model_size=engine.model_size,
                serving=pages.serving(name),
                tls=pages.tls(name),
            )
            for name, engine in self._engines.items()
        )

    def worked_ns(self, name: str, pages: PageScraper) -> int | None:
        """Return an instant at or after which an engine worked, by its steps and its pages."""
        feed = self._engines[name].feed
        told = (feed.worked_ns if feed else None, pages.worked_ns(name))
        return max((t_ns for t_ns in told if t_ns is not None), default=None)

    def source_candidates(self, pages: PageScraper) -> tuple[SourceCandidate, ...]:
        """Return every engine as the choice of its source sees it."""
        return tuple(
            SourceCandidate(
                engine=name,
                role=engine.identity.role,
                devices=engine.identity.gpus,
                pid=engine.pid,
                ready_ns=engine.ready_ns if self.answers(name) else None,
                page=pages.page(name),
                last_received=_steps_received(engine),
            )
            for name, engine in self._engines.items()
        )

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return how the steps of each engine with a process are received."""
        return tuple(
            engine.feed.status(engine.silence)
            for engine in self._engines.values()
            if engine.feed is not None and engine.pid is not None
        )

    def check_step_silence(self, pages: PageScraper) -> None:
        """Say once, when it begins and when it ends, why an engine's steps are not received."""
        for name, engine in self._engines.items():
            if engine.state is not WorkerState.READY or engine.feed is None:
                continue
            seen = pages.window(name)
            advancing = None if seen is None else seen.tokens_advanced
            ready_seconds = (self._clock_ns() - engine.ready_ns) / 1e9
            silence = engine.feed.silence(ready_seconds, advancing)
            if silence != engine.silence:
                _log.warning("%s: %s", name, silence or "its steps are received again")
                engine.silence = silence

    def _up(self, engine: _Engine) -> bool | None:
        """Whether its process answered the last probe; None if it serves and none could be made."""
        serves = engine.pid is not None and engine.state in (
            WorkerState.READY,
            WorkerState.DRAINING,
        )
        return self._up_of(engine.worker.name) if serves else False

    def _assign(self, engine: _Engine, state: EngineState, now_ns: int) -> None:
        self._ledger.assign(
            Assignment(
                engine=engine.worker.name,
                role=engine.identity.role,
                devices=engine.identity.gpus,
                state=state,
                since_ns=now_ns,
                pids=() if engine.pid is None else (engine.pid,),
                model_name=engine.identity.model_name,
                ranks=engine.identity.ranks,
            )
        )


def _steps_received(engine: _Engine) -> dict[Method, int]:
    """Return when the engine's steps were received last; a plugin that tells no steps is none."""
    received_ns = engine.feed.received_ns if engine.feed is not None else None
    return {} if received_ns is None or engine.silence is not None else {Method.STEPS: received_ns}
