"""The problems of a node as sentences, ordered: causes before the symptoms they produce."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.landing.track import KEPT_SECONDS
from disagg_exporter.model import EngineState, Snapshot, Throttle, WorkerStatus

_HARMFUL = {Throttle.THERMAL: "it is too hot", Throttle.HW_SLOWDOWN: "its hardware slows it down"}
WORKER_PROBLEMS = {
    "failed": "has crashed so often that it was given up",
    "backoff": "has crashed and waits to be started again",
    "starting": "is starting",
    "draining": "is draining",
}
"""Text for each worker state that is a problem, worst first."""

DEAD_STATES = ("failed", "backoff")
"""Those of them in which the worker does not run."""


class Severity(StrEnum):
    """Severity of a problem: something is broken, or is starting or stopping."""

    BROKEN = "broken"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """One sentence and its severity; `lines` are the last lines that its subject printed."""

    severity: Severity
    text: str
    lines: tuple[str, ...] = ()


def problems_of(snapshot: Snapshot, now_ns: int, *, fresh: bool) -> tuple[NodeProblem, ...]:
    """Return all problems, broken things first: daemon, workers, engines, devices, collectors."""
    now_seconds = now_ns / 1e9 + snapshot.wall_offset_seconds
    stale = [] if fresh else [_stale(snapshot, now_ns)]
    found = [
        *stale,
        *_workers(snapshot, now_seconds),
        *_engines(snapshot),
        *(_devices(snapshot) if fresh else ()),
        *_collectors(snapshot, now_seconds),
    ]
    return tuple(sorted(found, key=lambda problem: problem.severity is not Severity.BROKEN))


def time_text(seconds: float) -> str:
    """Return a short duration: 45 s, 3 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def waiting_text(worker: WorkerStatus, now_seconds: float) -> str:
    """Return how long a worker has been in its state, and its deadline; empty where unknown."""
    parts = []
    if worker.since_timestamp_seconds is not None:
        parts.append(f"for {time_text(max(0.0, now_seconds - worker.since_timestamp_seconds))}")
    if worker.deadline_timestamp_seconds is not None:
        left = max(0.0, worker.deadline_timestamp_seconds - now_seconds)
        parts.append(f"given up in {time_text(left)}")
    if worker.next_start_timestamp_seconds is not None:
        left = max(0.0, worker.next_start_timestamp_seconds - now_seconds)
        parts.append(f"next start in {time_text(left)}")
    return ", ".join(parts)


def _stale(snapshot: Snapshot, now_ns: int) -> NodeProblem:
    age_seconds = (now_ns - snapshot.taken_ns) / 1e9
    text = f"The daemon has measured nothing for {age_seconds:.0f} s: its accounts are not shown."
    return NodeProblem(Severity.BROKEN, text)


def _workers(snapshot: Snapshot, now_seconds: float) -> Iterator[NodeProblem]:
    # Given up is worse than waiting for a retry.
    order = {state: place for place, state in enumerate(WORKER_PROBLEMS)}
    for worker in sorted(snapshot.workers, key=lambda each: order.get(each.state, len(order))):
        if what := WORKER_PROBLEMS.get(worker.state):
            dead = worker.state in DEAD_STATES
            cause = f": {worker.cause}" if worker.cause and dead else ""
            times = "once" if worker.restarts == 1 else f"{worker.restarts} times"
            again = f", {times} started again" if worker.restarts else ""
            when = waiting_text(worker, now_seconds)
            text = f"Worker {worker.worker} {what}{cause}{again}{f' ({when})' if when else ''}."
            severity = Severity.BROKEN if dead else Severity.NOTICE
            yield NodeProblem(severity, text, worker.last_lines)
        elif text := _recovered(worker, now_seconds):
            yield NodeProblem(Severity.NOTICE, text)
        if worker.paused:
            text = f"Worker {worker.worker} is paused: it is neither killed nor started."
            yield NodeProblem(Severity.NOTICE, text)
        if worker.drained:
            text = f"Worker {worker.worker} is drained by hand: it gets no requests until resumed."
            yield NodeProblem(Severity.NOTICE, text)


def _recovered(worker: WorkerStatus, now_seconds: float) -> str:
    """Return that a worker crashed in the last hour and serves again; empty if it did not."""
    since = worker.since_timestamp_seconds
    if worker.state != "ready" or not worker.cause or since is None:
        return ""
    age_seconds = max(0.0, now_seconds - since)
    if age_seconds > KEPT_SECONDS:
        return ""
    again = f"is ready again for {time_text(age_seconds)}"
    return f"Worker {worker.worker} crashed and {again}: {worker.cause}."


def silence_text(engine: str, *, is_launched: bool) -> str:
    """The problem of an engine that is not up; one that we did not launch is not probed."""
    if is_launched:
        return f"Engine {engine} does not answer its health probe."
    return f"The metrics page of engine {engine} cannot be read."


def _engines(snapshot: Snapshot) -> Iterator[NodeProblem]:
    launched = {worker.worker for worker in snapshot.workers}
    for engine in snapshot.engines:
        if engine.state is EngineState.READY and engine.up is False:
            text = silence_text(engine.engine, is_launched=engine.engine in launched)
            yield NodeProblem(Severity.BROKEN, text)
    page = snapshot.router.page if snapshot.router else None
    if snapshot.router and page:
        names = {engine.url: engine.name for engine in snapshot.router.engines}
        for url, well in page.worker_health.items():
            if not well:
                text = f"The router holds {names.get(url, url)} unwell and sends it no requests."
                yield NodeProblem(Severity.BROKEN, text)


def _collectors(snapshot: Snapshot, now_seconds: float) -> Iterator[NodeProblem]:
    """Yield problems of collectors; an engine's only if the engine itself is well."""
    silent = {worker.worker for worker in snapshot.workers if worker.state != "ready"}
    silent |= {engine.engine for engine in snapshot.engines if engine.up is False}
    for collector in snapshot.collectors:
        kind, _, engine = collector.collector.partition(":")
        if collector.success or (kind == "engine" and engine in silent):
            continue
        last = collector.last_success_timestamp_seconds
        since = (
            "it never succeeded"
            if last is None
            else f"it last succeeded {max(0.0, now_seconds - last):.0f} s ago"
        )
        text = (
            f"Collector {collector.collector} failed; {since}: disagg-node doctor says what to do."
        )
        yield NodeProblem(Severity.BROKEN, text)


def _devices(snapshot: Snapshot) -> Iterator[NodeProblem]:
    read = {reading.gpu for reading in snapshot.readings}
    names = {device.gpu: f"GPU {device.index}" for device in snapshot.devices}
    for device in snapshot.devices:
        if not device.is_pseudo and device.gpu not in read:
            yield NodeProblem(Severity.BROKEN, f"{names[device.gpu]} cannot be read.")
    for reading in snapshot.readings:
        for throttle in reading.throttles or ():
            if throttle in _HARMFUL:
                text = f"The clocks of {names.get(reading.gpu, reading.gpu)} are held back"
                yield NodeProblem(Severity.BROKEN, f"{text}: {_HARMFUL[throttle]}.")
