"""A stand-in engine at work: its step model driven by the real clock, its telemetry sent out."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from disagg_cluster.demo.simulated_gpu import SimGpus
from disagg_cluster.simulator.engine.batch import Outcome, Sequence
from disagg_cluster.simulator.engine.engine import Engine, StepRun
from disagg_cluster.simulator.telemetry.page_counters import PageCounters
from disagg_cluster.simulator.telemetry.step_facts import facts_of, state_of
from disagg_exporter.inside_engine.disagg_steps.sender import Facts

_GPU_WRITE_SECONDS = 0.1  # as often as the daemon reads them
_GPU_REST_WRITE_SECONDS = 0.5  # the reader considers a device's last activity valid for a second
_RESTING_AFTER_NS = 300_000_000


class StepSink(Protocol):
    """Receives step records; the sender of the real plugin, or nothing."""

    def step(self, facts: Facts, t_ns: int, *, counted: bool = True) -> None:
        """Send one step, or with `counted=False` only the engine's state."""


class StepLoop:
    """Runs an `Engine` in real time: it sleeps while a step lasts and while there is no work.

    Args:
        engine: The simulated engine, which plans one step at a time.
        counters: The counters of the engine's page.
        transfer_seconds: How long the KV of so many tokens travels to this engine.
        sink: Receives records; None when no daemon listens.
        gpus: The engine's simulated GPUs; None when it has none.
    """

    def __init__(
        self,
        engine: Engine,
        counters: PageCounters,
        transfer_seconds: Callable[[int], float],
        *,
        sink: StepSink | None = None,
        gpus: SimGpus | None = None,
    ) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._counters = counters
        self._transfer_seconds = transfer_seconds
        self._sink = sink
        self._gpus = gpus
        self._answers: dict[Sequence, asyncio.Future[None]] = {}
        self._transfers: dict[int, asyncio.TimerHandle] = {}
        self._submitted = asyncio.Event()
        self._awake = asyncio.Event()
        self._stepped = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._working_until_ns = time.monotonic_ns()
        self._reported = self._scheduler.state()

    async def complete(self, sequence: Sequence) -> None:
        """Run a request to its last token; cancelling this removes it from the engine."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[sequence] = answer
        self._empty.clear()
        self._scheduler.submit(sequence)
        self._submitted.set()
        try:
            await answer
        except asyncio.CancelledError:
            self._abort(sequence)
            raise
        finally:
            del self._answers[sequence]
            if not self._answers:
                self._empty.set()

    @property
    def in_flight(self) -> int:
        """Number of unanswered requests."""
        return len(self._answers)

    async def emptied(self) -> None:
        """Return as soon as no request is left."""
        await self._empty.wait()

    async def stepped(self) -> None:
        """Return when the next step has ended."""
        await self._stepped.wait()

    async def run(self) -> None:
        """Take step after step until cancelled."""
        while True:
            run = self._begin()
            if run is None:
                await self._wait_for_work()
                continue
            if self._gpus is not None:
                self._gpus.work(run.price, run.begun_ns)
            self._working_until_ns = run.end_ns(1)
            self._awake.set()
            await asyncio.sleep((self._working_until_ns - time.monotonic_ns()) / 1e9)
            outcome = self._engine.finish(time.monotonic_ns())
            if outcome is None:
                continue
            if self._gpus is not None:
                self._gpus.rest(outcome.ended_ns)
            self._report(outcome)
            self._stepped.set()
            self._stepped = asyncio.Event()
            for sequence in outcome.finished:
                answer = self._answers.get(sequence)
                if answer is not None and not answer.done():
                    answer.set_result(None)

    async def report_gpus(self) -> None:
        """Keep the device files up to date until cancelled, less often while nothing happens."""
        while True:
            self._write_gpus()
            if time.monotonic_ns() < self._working_until_ns + _RESTING_AFTER_NS:
                await asyncio.sleep(_GPU_WRITE_SECONDS)
            else:
                self._awake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GPU_REST_WRITE_SECONDS):
                        await self._awake.wait()

    def _begin(self) -> StepRun | None:
        """Plan a step, and start the KV transfers for which there is room now."""
        run = self._engine.begin(time.monotonic_ns())
        loop = asyncio.get_running_loop()
        for sequence in self._scheduler.to_fetch:
            seconds = self._transfer_seconds(sequence.external_tokens)
            self._transfers[sequence.number] = loop.call_later(
                seconds, self._receive, sequence.number
            )
        self._scheduler.to_fetch.clear()
        return run

    def _receive(self, number: int) -> None:
        del self._transfers[number]
        self._scheduler.receive(number)
        self._submitted.set()

    def _abort(self, sequence: Sequence) -> None:
        transfer = self._transfers.pop(sequence.number, None)
        if transfer is not None:
            transfer.cancel()
        self._scheduler.abort(sequence)
        self._counters.aborted += 1

    async def _wait_for_work(self) -> None:
        """Wait for a request or for the KV of one; the state between steps is reported once."""
        state = self._scheduler.state()
        if self._sink is not None and state != self._reported:
            self._reported = state
            self._sink.step(state_of(state), time.monotonic_ns(), counted=False)
        # Written where work ends and where it begins again, so that readers see sharp edges.
        self._write_gpus()
        self._submitted.clear()
        await self._submitted.wait()
        self._write_gpus()

    def _report(self, outcome: Outcome) -> None:
        self._counters.count(outcome)
        self._reported = self._scheduler.state()
        if self._sink is not None:
            self._sink.step(facts_of(outcome, self._reported), outcome.ended_ns)

    def _write_gpus(self) -> None:
        if self._gpus is None:
            return
        try:
            self._gpus.write(time.monotonic_ns())
        except OSError as error:
            self._gpus = None
            sys.stderr.write(f"stand-in: no more GPU files: {error}\n")
