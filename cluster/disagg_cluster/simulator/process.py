"""One process of an engine, from ready to dead: it accepts requests, works and reports."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Protocol

from disagg_cluster.simulator.cluster.event_queue import EventQueue, SimulatedPage
from disagg_cluster.simulator.cluster.spec import EngineSpec, Reporting
from disagg_cluster.simulator.engine.batch import SchedulerLimits, Sequence
from disagg_cluster.simulator.engine.engine import Engine, StepRun
from disagg_cluster.simulator.engine.roofline import AT_REST, StepNoise
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_cluster.simulator.gpus import GpuGroup
from disagg_cluster.simulator.telemetry.telemetry import Telemetry
from disagg_exporter.model import DeviceReading


class ProcessListener(Protocol):
    """Receives notifications about the requests in a process."""

    def started(self, process: EngineProcess, sequence: Sequence) -> None:
        """Called when a request has generated its first token."""

    def finished(self, process: EngineProcess, sequence: Sequence) -> None:
        """Called when a request has generated its last token."""

    def wants_kv(self, process: EngineProcess, sequence: Sequence) -> None:
        """Called when there is room for a prompt's KV, so that it may be sent."""


class EngineProcess:
    """An engine process.

    Args:
        spec: Its engine.
        pid: Its process id.
        queue: The virtual time.
        gpus: The GPUs it works on.
        reporting: What it reports, and how often.
        listener: Notified about its requests.
        rng: Its separate random source.
    """

    def __init__(
        self,
        spec: EngineSpec,
        pid: int,
        queue: EventQueue,
        gpus: GpuGroup,
        reporting: Reporting,
        listener: ProcessListener,
        rng: random.Random,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.pid = pid
        self.alive = True
        self.scheduler = Scheduler(spec.limits(), prefix_caching=spec.prefix_caching)
        self.engine = Engine(
            self.scheduler,
            spec.step_costs(gpus.clock_ratio),
            StepNoise(spec.noise, rng),
            gap_seconds=spec.gap_seconds,
        )
        self.engine.slowdowns.shared = 1 / gpus.free_ratio
        self.telemetry = Telemetry(spec, pid, queue, reporting, rng, self.scheduler.state)
        self._queue = queue
        self._gpus = gpus
        self._single_steps = reporting.single_steps
        self._reports = reporting.engines
        self._listener = listener
        if self._reports:
            queue.at(queue.now_ns, self.telemetry.hello)
            queue.every(reporting.heartbeat_seconds, self.telemetry.beat, over=self._dead)
            queue.every(reporting.page_seconds, self._show_page, over=self._dead)

    def submit(self, sequence: Sequence) -> None:
        """Accept a request."""
        self.scheduler.submit(sequence)
        self._disturb()

    def receive(self, number: int) -> None:
        """Record that the KV of a request's prompt has arrived."""
        self.scheduler.receive(number)
        self._disturb()

    def compute_locally(self, number: int) -> None:
        """Compute a prompt here whose KV will not arrive."""
        self.scheduler.compute_locally(number)
        self._disturb()

    def release_kv(self, number: int, *, expired: bool = False) -> None:
        """Free the KV kept for another engine: it was fetched, or has expired."""
        if self.alive and self.scheduler.release_kv(number):
            self.telemetry.counters.expired_requests += expired
            if self.engine.run is None:
                self._begin()

    def stall(self, until_ns: int) -> None:
        """Hang until then: no step ends or begins, but the API server still answers and beats."""
        self._settle()
        self.engine.stall(self._queue.now_ns, until_ns)
        if self.engine.run is None:
            self._queue.at(until_ns, self._resume)
        else:
            self._await(self.engine.run)

    def reprice(self) -> None:
        """Recompute the costs of steps after the current one from the present state of its GPUs."""
        self.engine.costs = self.spec.step_costs(self._gpus.clock_ratio)
        self.engine.slowdowns.shared = 1 / self._gpus.free_ratio
        self._disturb()

    def change(self, change: Callable[[Engine], None]) -> None:
        """Change its engine, with effect from the step after the current one."""
        change(self.engine)
        self._disturb()

    def resize(self, limits: SchedulerLimits) -> None:
        """Use other limits from the next step on."""
        self.scheduler.resize(limits)
        self.telemetry.resize(limits.kv_blocks)
        self._disturb()

    def reuse_prefixes(self, *, on: bool) -> None:
        """Enable or disable prefix caching."""
        self.scheduler.prefix_caching = on

    def die(self) -> None:
        """End at once with all requests; what is not reported yet never will be."""
        self._settle(self._queue.now_ns - self.telemetry.report_ns)
        run, self.engine.run = self.engine.run, None
        if run is not None:
            self._gpus.work(run.unsettled_ns(self._queue.now_ns), run.price)
        self.alive = False
        self.telemetry.die()

    def read_gpus(self) -> list[DeviceReading]:
        """Return the driver's current readings of its GPUs."""
        now_ns, run = self._queue.now_ns, self.engine.run
        if run is None:
            return self._gpus.read(now_ns, 0, AT_REST)
        return self._gpus.read(now_ns, run.unsettled_ns(now_ns), run.price)

    def page(self) -> str:
        """Return its current metrics page."""
        self._settle()
        return self.telemetry.page(self.scheduler.state())

    def _disturb(self) -> None:
        run = self.engine.run
        if run is None:
            self._begin()
        elif self.engine.cut(self._queue.now_ns):
            self._await(run)

    def _resume(self) -> None:
        if self.alive and self.engine.run is None:
            self._begin()

    def _begin(self) -> None:
        now_ns = self._queue.now_ns
        if self.engine.stalled(now_ns):
            return
        run = self.engine.begin(now_ns)
        wanted, self.scheduler.to_fetch = self.scheduler.to_fetch, []
        for sequence in wanted:
            self._listener.wants_kv(self, sequence)
        if run is not None:
            self._await(run)
        elif self._reports:
            self.telemetry.report_state(self.scheduler.state())

    def _await(self, run: StepRun) -> None:
        steps = run.done + 1 if self._single_steps else run.count
        self._queue.at(run.end_ns(steps), partial(self._wake, run))

    def _wake(self, run: StepRun) -> None:
        # A run that was cut or stalled, or a process that died, leaves events that are obsolete.
        if run is self.engine.run:
            self._settle()
            if run is self.engine.run:
                self._await(run)

    def _settle(self, until_ns: int | None = None) -> None:
        run = self.engine.run
        outcome = self.engine.settle(self._queue.now_ns if until_ns is None else until_ns)
        if run is None or outcome is None:
            return
        self._gpus.work(outcome.elapsed_ns, run.price)
        if self._reports:
            self.telemetry.step(outcome, self.scheduler.state())
        for sequence in outcome.started:
            self._listener.started(self, sequence)
        for sequence in outcome.finished:
            self._listener.finished(self, sequence)
        if self.engine.run is None:
            self._begin()

    def _show_page(self) -> SimulatedPage:
        return SimulatedPage(self.name, self._queue.now_ns, self.page())

    def _dead(self) -> bool:
        return not self.alive
