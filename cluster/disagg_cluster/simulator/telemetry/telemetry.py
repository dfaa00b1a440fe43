"""All that one engine process tells: step records, heartbeats, its metrics page."""

from __future__ import annotations

import random
from functools import partial

from disagg_cluster.simulator.cluster.cluster import EngineSpec, Telling
from disagg_cluster.simulator.cluster.event_queue import Agenda
from disagg_cluster.simulator.cluster.kv_transfer import Transfer
from disagg_cluster.simulator.engine.batch import Limits, Standing
from disagg_cluster.simulator.engine.steps import Outcome
from disagg_cluster.simulator.telemetry.lossy_link import Channel
from disagg_cluster.simulator.telemetry.page import Page, PageFacts
from disagg_cluster.simulator.telemetry.page_counters import PageCounters
from disagg_cluster.simulator.telemetry.telemetry_emitter import Teller
from disagg_exporter.model import Role
from disagg_exporter.steps.messages import Message

_NS = 1_000_000_000


class Telemetry:
    """One process's plugin, with its socket, and its page. It says hello when it is made.

    `report_ns` pass from the end of a step until the API server hears of it and the plugin tells.
    """

    def __init__(
        self, spec: EngineSpec, pid: int, agenda: Agenda, telling: Telling, rng: random.Random
    ) -> None:
        self.channel = Channel(agenda, rng)
        self.counters = PageCounters(spec.longest_tokens)
        self._spec = spec
        self._agenda = agenda
        self.report_ns = round(telling.report_seconds * _NS)
        self._teller = Teller(spec.name, pid, incarnation=agenda.now_ns)
        created_seconds = agenda.now_ns / _NS + telling.wall_offset_seconds
        self._page = Page(_facts(spec, spec.limits(), created_seconds), self.counters)
        self._latest = Standing()
        self._dead = False
        agenda.at(agenda.now_ns, self._hello)

    def step(self, outcome: Outcome, standing: Standing) -> None:
        """Let steps that have ended be counted and told as soon as the API server hears of them."""
        self._latest = standing
        t_ns = outcome.ended_ns + self.report_ns
        if t_ns > self._agenda.now_ns:
            self._agenda.at(t_ns, partial(self._report, outcome, standing))
        elif (message := self._report(outcome, standing)) is not None:
            self._agenda.tell(message)

    def state(self, standing: Standing) -> None:
        """Let the state between two steps be told, if it is news."""
        if standing == self._latest:
            return
        self._latest = standing
        t_ns = self._agenda.now_ns + self.report_ns
        self._agenda.at(t_ns, partial(self._report_state, standing))

    def beat(self) -> Message | None:
        """Tell that the process lives."""
        return self.channel.send(self._teller.heartbeat(self._agenda.now_ns))

    def fetched(self, transfer: Transfer) -> None:
        """Count a KV transfer to this engine."""
        model = self._spec.model
        blocks = transfer.bytes // model.kv_bytes_per_token // self._spec.block_tokens
        self.counters.transferred(transfer, max(1, blocks) * model.layers)

    def page(self, standing: Standing) -> str:
        """The metrics page."""
        return self._page.render(standing)

    def die(self) -> None:
        """End: what is written to the socket is heard, what is not told yet never will be."""
        self._dead = True
        self.channel.close()

    def _hello(self) -> Message | None:
        return self.channel.send(self._teller.hello(self._agenda.now_ns))

    def _report(self, outcome: Outcome, standing: Standing) -> Message | None:
        if self._dead:
            return None
        self.counters.count(outcome)
        return self._send(self._teller.step(outcome, standing, self._agenda.now_ns))

    def _report_state(self, standing: Standing) -> Message | None:
        if self._dead:
            return None
        message = self._teller.state(standing, self._agenda.now_ns)
        return None if message is None else self._send(message)

    def _send(self, message: Message) -> Message | None:
        if self.channel.loses():
            self._teller.drop()
            return None
        return self.channel.send(message)


def _facts(spec: EngineSpec, limits: Limits, created_seconds: float) -> PageFacts:
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
