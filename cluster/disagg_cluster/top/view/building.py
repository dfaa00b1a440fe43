"""Builds the view from recent readings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from disagg_cluster.top.readings.values import EngineReading, LiveReading, WorkerReading
from disagg_cluster.top.view.gpu_history import (
    WINDOW_SECONDS,
    GpuTimeline,
    history,
    total,
)
from disagg_cluster.top.view.planned import advised_moves, bottleneck_rows, moves_of, plan_rows
from disagg_cluster.top.view.pools import models_of
from disagg_cluster.top.view.rates import (
    arrivals_per_second,
    p95_since,
    tokens_per_second,
    users_first_token_p95,
)
from disagg_cluster.top.view.reading_history import ReadingHistory
from disagg_cluster.top.view.troubles import troubles_of
from disagg_cluster.top.view.values import (
    GpuRow,
    Links,
    LiveEngineRow,
    NodeRow,
    TerminalView,
    WorkerRow,
)


def empty_view(title: str, links: Links, at_seconds: float, unanswered: str = "") -> TerminalView:
    """The view before the first reading, with the reason if it failed."""
    return TerminalView(
        title=title,
        at_seconds=at_seconds,
        version="",
        simulated=False,
        links=links,
        time=None,
        behind_seconds=None,
        history=(),
        rates_seconds=None,
        users_first_token_p95_seconds=None,
        arrivals_per_second=None,
        nodes=(),
        gpus=(),
        models=(),
        engines=(),
        workers=(),
        troubles=(),
        events=(),
        plans=(),
        moves=(),
        bottlenecks=(),
        unanswered=unanswered,
    )


def view_of(
    title: str, links: Links, readings: ReadingHistory, unanswered: str = ""
) -> TerminalView:
    """The view of the latest reading, with rates from earlier ones."""
    reading = readings.newest
    if reading is None:
        return empty_view(title, links, 0.0, unanswered)
    lines = readings.timelines
    times = {gpu.key: time for gpu in reading.gpus if (time := lines[gpu.key].last(WINDOW_SECONDS))}
    marks = [gpu.watermark for gpu in reading.gpus if gpu.watermark is not None]
    whole_history = history([lines[gpu.key] for gpu in reading.gpus])
    engines_before = [
        (each.at_seconds, {engine.key: engine for engine in each.engines})
        for each in readings.before_newest
    ]
    states = {worker.key: worker for worker in reading.workers}
    indices = {gpu.key: gpu.index or gpu.gpu for gpu in reading.gpus}
    several = len(_clusters(reading)) > 1
    return replace(
        empty_view(title, links, reading.at_seconds, unanswered),
        version=reading.version,
        simulated=reading.simulated,
        time=total(list(times.values())),
        behind_seconds=max(0.0, reading.at_seconds - min(marks)) if marks else None,
        history=whole_history,
        rates_seconds=readings.rates_seconds,
        users_first_token_p95_seconds=users_first_token_p95(readings.before_newest, reading),
        arrivals_per_second=arrivals_per_second(readings.before_newest, reading),
        nodes=tuple(_nodes(reading, lines)),
        gpus=tuple(
            GpuRow(
                node=gpu.node,
                gpu=gpu.gpu,
                index=gpu.index,
                gpu_name=gpu.gpu_name,
                role=gpu.role,
                engines=gpu.engines,
                time=times.get(gpu.key),
                history=history([lines[gpu.key]], max(marks)) if marks else (),
                memory_used_bytes=gpu.memory_used_bytes,
                memory_total_bytes=gpu.memory_total_bytes,
                power_watts=gpu.power_watts,
            )
            for gpu in reading.gpus
        ),
        models=models_of(reading),
        engines=tuple(
            _engine(
                engine,
                [(at, each[engine.key]) for at, each in engines_before if engine.key in each],
                states.get(engine.key),
                tuple(indices.get((engine.node, gpu), gpu) for gpu in engine.gpus),
                reading.at_seconds,
            )
            for engine in reading.engines
        ),
        workers=tuple(_worker(worker, reading.at_seconds) for worker in reading.workers),
        troubles=troubles_of(reading),
        events=tuple(readings.events),
        plans=plan_rows(reading.plans),
        moves=(
            *advised_moves(reading.advised, several=several),
            *moves_of(reading.plans, several=several),
        ),
        bottlenecks=bottleneck_rows(reading.bottlenecks, several=several),
    )


def _clusters(reading: LiveReading) -> set[str]:
    """The clusters whose models or whose planners are read."""
    keys = (*reading.pool_gpus, *(plan.key for plan in reading.plans))
    return {
        *(key.cluster for key in keys),
        *(move.cluster for move in reading.advised),
        *(verdict.cluster for verdict in reading.bottlenecks),
    }


def _nodes(reading: LiveReading, lines: Mapping[tuple[str, str], GpuTimeline]) -> Iterator[NodeRow]:
    lines_of: dict[str, list[GpuTimeline]] = defaultdict(list)
    for gpu in reading.gpus:
        lines_of[gpu.node].append(lines[gpu.key])
    engines = Counter(engine.node for engine in reading.engines)
    for node in reading.nodes:
        own = lines_of[node]
        known = [time for line in own if (time := line.last(WINDOW_SECONDS))]
        yield NodeRow(node, len(own), engines[node], total(known), history(own))


def _engine(
    engine: EngineReading,
    before: Sequence[tuple[float, EngineReading]],
    worker: WorkerReading | None,
    gpus: tuple[str, ...],
    now: float,
) -> LiveEngineRow:
    shown = _worker(worker, now) if worker is not None else None
    return LiveEngineRow(
        node=engine.node,
        engine=engine.engine,
        role=engine.role,
        model_name=engine.model_name,
        kind=engine.kind,
        version=engine.version,
        state=_state(engine, worker),
        state_seconds=shown.state_seconds if shown else None,
        gpus=gpus,
        running=engine.running,
        waiting=_waiting(engine),
        kv_used_ratio=engine.kv_used_ratio,
        first_token_p95_seconds=p95_since(engine, before, lambda each: each.first_token),
        between_tokens_p95_seconds=p95_since(engine, before, lambda each: each.between_tokens),
        tokens_per_second=tokens_per_second(engine, before, now),
        used_ratio=engine.used_ratio,
        bound=engine.bound,
        method=engine.method,
        confidence=engine.confidence,
    )


def _waiting(engine: EngineReading) -> float | None:
    """Requests waiting for capacity, and those waiting for something else, such as their KV."""
    if engine.waiting is None and engine.deferred is None:
        return None
    return (engine.waiting or 0.0) + (engine.deferred or 0.0)


def _state(engine: EngineReading, worker: WorkerReading | None) -> str:
    """The state of an engine in a word or two."""
    if worker is not None and worker.state != "ready":
        return worker.state
    if engine.follows is not None:
        return "follower"
    if engine.registered is False:
        return "not registered"
    if engine.up is False:
        return "no answer"
    if worker is not None:
        return ", ".join(_marks(worker)) or worker.state
    return "ready" if engine.up else ""


def _worker(worker: WorkerReading, now: float) -> WorkerRow:
    begun = worker.start_timestamp if worker.since_timestamp is None else worker.since_timestamp
    return WorkerRow(
        node=worker.node,
        worker=worker.worker,
        state=worker.state,
        state_seconds=_ahead(now, begun),
        restarts=worker.restarts,
        marks=_marks(worker),
        pid=worker.pid,
        reason=worker.reason,
        next_start_seconds=_ahead(worker.next_start_timestamp, now),
        deadline_seconds=_ahead(worker.deadline_timestamp, now),
        log=worker.log,
    )


def _marks(worker: WorkerReading) -> tuple[str, ...]:
    marks = (("paused", worker.paused), ("drained", worker.drained))
    return tuple(mark for mark, is_set in marks if is_set)


def _ahead(later: float | None, earlier: float | None) -> float | None:
    """Seconds from one time to another; None if either is unknown."""
    return None if later is None or earlier is None else max(0.0, later - earlier)
