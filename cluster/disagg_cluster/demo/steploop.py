"""A stand-in engine at work: its step model driven by the real clock, its telemetry sent out."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Protocol

from disagg_cluster.demo.engine import Engine
from disagg_cluster.demo.enginepage import PageCounters
from disagg_cluster.demo.simgpu import SimGpus
from disagg_cluster.demo.steps import Load, Request, StepOutcome
from disagg_exporter.inside_engine.disagg_steps.sender import Facts

_GPU_WRITE_SECONDS = 0.1  # as often as the daemon looks
_GPU_REST_WRITE_SECONDS = 0.5  # the reader believes a device's last activity for a second
_RESTING_AFTER_NS = 300_000_000


class StepSink(Protocol):
    """Where step records go; the sender of the real plugin, or nothing."""

    def step(self, facts: Facts, t_ns: int, *, counted: bool = True) -> None:
        """Send one step, or with `counted=False` only the engine's state."""


class StepLoop:
    """Runs an `Engine` in real time: it sleeps while a step lasts and while there is no work.

    Args:
        engine: The step model.
        counters: What the engine's page tells.
        sink: Where records go; None when no daemon listens.
        gpus: The engine's simulated GPUs; None when it has none.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        engine: Engine,
        counters: PageCounters,
        *,
        sink: StepSink | None = None,
        gpus: SimGpus | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._engine = engine
        self._counters = counters
        self._sink = sink
        self._gpus = gpus
        self._clock_ns = clock_ns
        self._answers: dict[Request, asyncio.Future[None]] = {}
        self._submitted = asyncio.Event()
        self._awake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._working_until_ns = clock_ns()
        self._told = engine.load()

    async def complete(self, request: Request) -> None:
        """Run `request` to its last token; cancelling this takes it out of the engine."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        self._empty.clear()
        self._engine.submit(request)
        self._submitted.set()
        try:
            await answer
        except asyncio.CancelledError:
            self._engine.abort(request)
            self._counters.aborted += 1
            raise
        finally:
            del self._answers[request]
            if not self._answers:
                self._empty.set()

    async def emptied(self) -> None:
        """Return as soon as no request is left."""
        await self._empty.wait()

    async def run(self) -> None:
        """Take step after step until cancelled."""
        while True:
            plan = self._engine.begin(self._clock_ns())
            if plan is None:
                await self._rest()
                continue
            if self._gpus is not None:
                self._gpus.work(prefill=bool(plan.chunks), now_ns=plan.begun_ns)
            self._working_until_ns = plan.begun_ns + plan.planned_ns
            self._awake.set()
            await asyncio.sleep((self._working_until_ns - self._clock_ns()) / 1e9)
            outcome = self._engine.finish(plan, self._clock_ns())
            if self._gpus is not None:
                self._gpus.rest(outcome.ended_ns)
            self._tell(outcome)
            for request in outcome.finished:
                answer = self._answers.get(request)
                if answer is not None and not answer.done():
                    answer.set_result(None)

    async def report_gpus(self) -> None:
        """Keep the device files up to date until cancelled, seldom while nothing happens."""
        while True:
            self._write_gpus()
            if self._clock_ns() < self._working_until_ns + _RESTING_AFTER_NS:
                await asyncio.sleep(_GPU_WRITE_SECONDS)
            else:
                self._awake.clear()
                await _wait_for(self._awake, _GPU_REST_WRITE_SECONDS)

    async def _rest(self) -> None:
        """Wait for a request or for the KV of one; the state between steps is told once."""
        load = self._engine.load()
        if self._sink is not None and load != self._told:
            self._told = load
            self._sink.step(_facts(StepOutcome(0, 0), load), self._clock_ns(), counted=False)
        # Written where work ends and where it begins again: no reader then smears the edges.
        self._write_gpus()
        self._submitted.clear()
        arrival_ns = self._engine.next_arrival_ns()
        wait_ns = None if arrival_ns is None else arrival_ns - self._clock_ns()
        await _wait_for(self._submitted, None if wait_ns is None else wait_ns / 1e9)
        self._write_gpus()

    def _tell(self, outcome: StepOutcome) -> None:
        self._counters.count(outcome)
        self._told = self._engine.load()
        if self._sink is not None:
            self._sink.step(_facts(outcome, self._told), outcome.ended_ns)

    def _write_gpus(self) -> None:
        if self._gpus is None:
            return
        try:
            self._gpus.write(self._clock_ns())
        except OSError as error:
            self._gpus = None
            print(f"stand-in: no more GPU files: {error}", file=sys.stderr, flush=True)  # noqa: T201


def _facts(outcome: StepOutcome, load: Load) -> Facts:
    return Facts(
        elapsed_ns=outcome.elapsed_ns,
        context_requests=outcome.context_requests,
        context_tokens=outcome.context_tokens,
        generation_requests=outcome.generation_requests,
        generation_tokens=outcome.generation_tokens,
        computed_tokens=outcome.computed_tokens,
        external_tokens=outcome.external_tokens,
        running=load.running,
        waiting=load.waiting,
        deferred=load.deferred,
        kv_usage_ratio=load.kv_usage_ratio,
    )


async def _wait_for(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for `event`, at most so long; None waits for ever."""
    try:
        async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return
