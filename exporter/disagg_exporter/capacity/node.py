"""The engines of a node: ingests their messages and pages, returns how full each is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from disagg_exporter.capacity.bottleneck import BottleneckEvidence, DeviceActivity, bottleneck_of
from disagg_exporter.capacity.compute_rates import bytes_per_second, flops_per_second
from disagg_exporter.capacity.curves.curve import LearnedLimits
from disagg_exporter.capacity.curves.utilization import utilization
from disagg_exporter.capacity.engine import PageCapacity, StepCapacity
from disagg_exporter.capacity.stream import StreamLoad, learn
from disagg_exporter.capacity.work import Inbox, RecordStretch
from disagg_exporter.model import (
    Bottleneck,
    CapacitySource,
    DeviceReading,
    EngineCapacity,
    EngineState,
    EngineStatus,
    Step,
    StepLimits,
    StreamKey,
)
from disagg_exporter.steps.rows import Rows

MOST_HELD = 10_000
"""Most messages that are held until the next second."""


@dataclass(slots=True)
class _KnownCapacity:
    """What is known of one engine, from both sources; `model_name` is the model it serves."""

    model_name: str
    steps: StepCapacity
    page: PageCapacity
    asleep: bool = False
    bound: Bottleneck = Bottleneck.UNKNOWN

    def source(self) -> StepCapacity | PageCapacity:
        """Return the better source that has a load."""
        by_page = self.steps.load is None and self.page.load is not None
        return self.page if by_page else self.steps

    def used_ratio(self, status: EngineStatus) -> float | None:
        """Return how full the engine is; None unless it is ready, awake, with known limits."""
        source = self.source()
        if status.state is not EngineState.READY or self.asleep or source.load is None:
            return None
        return utilization(status.role, source.load, source.prefill, source.decode)


class CapacityModel:
    """How full each engine of a node is; every method takes the time it needs as an argument.

    Messages are only queued as they arrive; the work is done once per second, in `advance`.

    Args:
        itl_seconds: The target for the time between tokens.
    """

    def __init__(self, itl_seconds: float) -> None:
        self._itl_seconds = itl_seconds
        self._engines: dict[str, _KnownCapacity] = {}
        self._configured: dict[str, StepLimits] = {}
        self._inbox = Inbox()
        self._activity = DeviceActivity()

    def step(self, key: StreamKey, step: Step, *, overlapped: bool) -> None:
        """Queue one step record; it is ignored if `advance` does not know the engine."""
        self._inbox.step(key, step, overlapped=overlapped)
        if self._inbox.count >= MOST_HELD:
            self._learn()

    def steps(
        self, key: StreamKey, rows: Rows, *, overlapped: bool, held_totals: bool = False
    ) -> None:
        """Queue step records of one stream, in the order of arrival."""
        self._inbox.steps(key, rows, overlapped=overlapped, held_totals=held_totals)
        if self._inbox.count >= MOST_HELD:
            self._learn()

    def heartbeat(self, key: StreamKey, message: Step, limits: StepLimits | None = None) -> None:
        """Queue a hello or heartbeat; a hello may contain the engine's own limits."""
        if limits is not None:
            self._configured[key.engine] = limits
        self._inbox.heartbeat(key, message)
        if self._inbox.count >= MOST_HELD:
            self._learn()

    def advance(
        self,
        engines: Iterable[EngineStatus],
        now_ns: int,
        readings: Iterable[DeviceReading] = (),
    ) -> None:
        """Learn from what has arrived, and update each engine's fullness and bottleneck.

        An engine that is no longer listed, or serves another model, is forgotten.
        """
        here = {status.engine: status for status in engines}
        for name in self._engines.keys() - here.keys():
            del self._engines[name]
            self._configured.pop(name, None)
        for name, status in here.items():
            known = self._engines.get(name)
            if known is None or known.model_name != status.model_name:
                steps, page = StepCapacity(self._itl_seconds), PageCapacity(self._itl_seconds)
                self._engines[name] = known = _KnownCapacity(status.model_name, steps, page)
            known.asleep = status.page is not None and bool(status.page.asleep)
            known.page.ingest(status.page, now_ns)
        self._learn()
        self._activity.ingest(readings)
        for name, known in self._engines.items():
            known.steps.advance(now_ns)
            known.bound = bottleneck_of(self._evidence(here[name], known), known.bound)

    def capacities(self, engines: Iterable[EngineStatus]) -> tuple[EngineCapacity, ...]:
        """Return how full engines are; one that is not ready, or asleep, has no ratio."""
        return tuple(
            _capacity(
                status,
                self._engines[status.engine],
                self._configured.get(status.engine, status.limits),
            )
            for status in engines
            if status.engine in self._engines
        )

    def limits(self, engine: str, now_ns: int) -> LearnedLimits:
        """Return what an engine's limits are read off, from both sources, as plain values."""
        known = self._engines.get(engine)
        if known is None:
            return LearnedLimits()
        page = known.page.save(now_ns)
        steps = known.steps.save(now_ns)
        return replace(steps, page_decode=page.page_decode, page_rates=page.page_rates)

    def restore_limits(self, engine: str, saved: LearnedLimits, now_ns: int) -> None:
        """Restore the saved limits of an engine that `advance` knows."""
        known = self._engines.get(engine)
        if known is not None:
            known.steps.restore(saved, now_ns)
            known.page.restore(saved, now_ns)

    def _learn(self) -> None:
        learn(self._stretches())

    def _stretches(self) -> Iterator[tuple[StreamLoad, RecordStretch]]:
        for key, sent in self._inbox.take():
            known = self._engines.get(key.engine)
            if known is not None:
                yield from known.steps.ingest(key, sent)

    def _evidence(self, status: EngineStatus, known: _KnownCapacity) -> BottleneckEvidence | None:
        source = known.source()
        load = source.load
        if status.state is not EngineState.READY or known.asleep or load is None:
            return None
        knee_ratio = None
        if source.prefill is not None and load.prefill_step_tokens is not None:
            knee = source.prefill.knee_tokens
            knee_ratio = math.inf if knee is None else load.prefill_step_tokens / knee
        activity = self._activity.of(status.devices)
        return BottleneckEvidence(
            kv_usage_ratio=load.kv_usage_ratio,
            waiting_ratio=load.waiting_ratio,
            preempted=load.preemptions > 0,
            used_ratio=known.used_ratio(status),
            gap_ratio=load.gap_ratio,
            prefill_ratio=load.prefill_ratio,
            knee_ratio=knee_ratio,
            tensor_ratio=activity.tensor_ratio,
            dram_ratio=activity.dram_ratio,
        )


def _capacity(
    status: EngineStatus, known: _KnownCapacity, configured: StepLimits
) -> EngineCapacity:
    source, load, size = known.source(), known.steps.load, status.model_size
    flops = read = None
    if load is not None and size is not None and status.state is EngineState.READY:
        cache_tokens = None if status.page is None else status.page.kv_cache_tokens
        flops = flops_per_second(load, size)
        read = bytes_per_second(load, size, cache_tokens)
    return EngineCapacity(
        engine=status.engine,
        used_ratio=known.used_ratio(status),
        prefill=source.prefill,
        decode=source.decode,
        source=CapacitySource.PAGE if source is known.page else CapacitySource.STEPS,
        bottleneck=known.bound,
        flops_per_second=flops,
        bytes_per_second=read,
        prefill_curve=known.steps.prefill_curve,
        decode_curve=known.steps.decode_curve,
        configured=configured,
    )
