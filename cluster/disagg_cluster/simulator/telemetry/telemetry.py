"""All reports of one engine process: step records, heartbeats, its metrics page."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from disagg_cluster.simulator.cluster.event_queue import EventQueue
from disagg_cluster.simulator.cluster.network import Transfer
from disagg_cluster.simulator.cluster.spec import EngineSpec, Reporting
from disagg_cluster.simulator.engine.batch import Outcome, SchedulerLimits, SchedulerState
from disagg_cluster.simulator.telemetry.page import Page, PageFacts
from disagg_cluster.simulator.telemetry.page_counters import PageCounters
from disagg_cluster.simulator.telemetry.telemetry_emitter import TelemetryEmitter
from disagg_exporter.model import SECOND_NS, Role
from disagg_exporter.steps.messages import ControlMessage


class LossyLink:
    """Carries the messages of one engine process.

    Faults can set `lost_ratio`, the share of step records that are lost, and `late_seconds`, the
    delay of all messages.
    """

    def __init__(self, queue: EventQueue, rng: random.Random) -> None:
        self.lost_ratio = 0.0
        self.late_seconds = 0.0
        self._queue = queue
        self._rng = rng
        self._under_way: deque[ControlMessage] = deque()
        self._last_ns = 0

    def loses(self) -> bool:
        """Return whether the next record is lost."""
        return self.lost_ratio > 0 and self._rng.random() < self.lost_ratio

    def send(self, message: ControlMessage) -> ControlMessage | None:
        """Send a message now; return it if it arrives at once."""
        arrives_ns = self._queue.now_ns + round(self.late_seconds * SECOND_NS)
        if arrives_ns >= self._last_ns and not self._under_way and not self.late_seconds:
            return message
        self._last_ns = max(self._last_ns, arrives_ns)
        self._under_way.append(message)
        self._queue.at(self._last_ns, self._deliver)
        return None

    def close(self) -> None:
        """Deliver all that is under way: the process is dead."""
        while self._under_way:
            self._queue.emit(self._under_way.popleft())

    def _deliver(self) -> ControlMessage | None:
        return self._under_way.popleft() if self._under_way else None


class Telemetry:
    """One process's plugin, with its socket, and its page.

    `report_ns` pass from the end of a step until the API server knows and the plugin sends it.
    `state` returns the current state of its scheduler: the API server always knows the requests it
    has.
    """

    def __init__(
        self,
        spec: EngineSpec,
        pid: int,
        queue: EventQueue,
        reporting: Reporting,
        rng: random.Random,
        state: Callable[[], SchedulerState],
    ) -> None:
        self.link = LossyLink(queue, rng)
        self._state = state
        self.counters = PageCounters(spec.longest_tokens)
        self._spec = spec
        self._queue = queue
        self.report_ns = round(reporting.report_seconds * SECOND_NS)
        self._emitter = TelemetryEmitter(spec.name, pid, incarnation=queue.now_ns)
        created_seconds = queue.now_ns / SECOND_NS + reporting.wall_offset_seconds
        self._facts = _facts(spec, spec.limits(), created_seconds)
        self._page = Page(self._facts, self.counters)
        self._latest = SchedulerState()
        self._dead = False

    def step(self, outcome: Outcome, state: SchedulerState) -> None:
        """Count and report steps that have ended as soon as the API server knows of them."""
        self._latest = state
        t_ns = outcome.ended_ns + self.report_ns
        if t_ns > self._queue.now_ns:
            self._queue.at(t_ns, partial(self._report, outcome, state))
        elif (message := self._report(outcome, state)) is not None:
            self._queue.emit(message)

    def report_state(self, state: SchedulerState) -> None:
        """Report the state between two steps, if it has changed."""
        if state == self._latest:
            return
        self._latest = state
        t_ns = self._queue.now_ns + self.report_ns
        self._queue.at(t_ns, partial(self._send_state, state))

    def hello(self) -> ControlMessage | None:
        """Send the first message of the connection."""
        return self.link.send(self._emitter.hello(self._queue.now_ns))

    def beat(self) -> ControlMessage | None:
        """Send a heartbeat."""
        now = self._state()
        in_flight = now.running + now.waiting + now.deferred
        return self.link.send(self._emitter.heartbeat(self._queue.now_ns, in_flight))

    def fetched(self, transfer: Transfer) -> None:
        """Count a KV transfer to this engine."""
        model = self._spec.model
        blocks = transfer.bytes // model.kv_bytes_per_token // self._spec.block_tokens
        self.counters.transferred(transfer, max(1, blocks) * model.layers)

    def page(self, state: SchedulerState) -> str:
        """Return the metrics page."""
        return self._page.render(state)

    def resize(self, kv_blocks: int) -> None:
        """Report another cache size, like a process that was started with it."""
        if self._facts.blocks != kv_blocks + 1:
            self._facts = replace(self._facts, blocks=kv_blocks + 1)
            self._page = Page(self._facts, self.counters)

    def die(self) -> None:
        """End: what is written to the socket arrives, what is not reported yet never will be."""
        self._dead = True
        self.link.close()

    def _report(self, outcome: Outcome, state: SchedulerState) -> ControlMessage | None:
        if self._dead:
            return None
        self.counters.count(outcome)
        return self._send(self._emitter.step(outcome, state, self._queue.now_ns))

    def _send_state(self, state: SchedulerState) -> ControlMessage | None:
        if self._dead:
            return None
        message = self._emitter.state_change(state, self._queue.now_ns)
        return None if message is None else self._send(message)

    def _send(self, message: ControlMessage) -> ControlMessage | None:
        if self.link.loses():
            self._emitter.drop()
            return None
        return self.link.send(message)


def _facts(spec: EngineSpec, limits: SchedulerLimits, created_seconds: float) -> PageFacts:
    return PageFacts(
        model_name=spec.model.name,
        created_seconds=created_seconds,
        connector=spec.role is not Role.MIXED,
        blocks=limits.kv_blocks + 1,
        block_tokens=limits.block_tokens,
        bytes_per_token=spec.model.kv_bytes_per_token,
        longest_tokens=spec.longest_tokens,
        prefix_caching=spec.prefix_caching,
    )
