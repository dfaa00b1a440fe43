"""Problems as sentences: failures before transitions, causes before consequences."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.top.readings.values import LiveReading, WorkerReading
from disagg_cluster.top.view.reading_history import named
from disagg_cluster.top.view.values import Trouble, TroubleSeverity
from disagg_exporter.landing.problems import DEAD_STATES, WORKER_PROBLEMS, silence_text
from disagg_exporter.model.counted import counted

_OF_ALERTS = {
    "critical": TroubleSeverity.BROKEN,
    "warning": TroubleSeverity.WARNING,
}
_ORDER = tuple(TroubleSeverity)


def troubles_of(reading: LiveReading) -> tuple[Trouble, ...]:
    """All problems, the worst first: workers, engines, then what only reads from them."""
    found = (
        *_nodes(reading),
        *_workers(reading),
        *_engines(reading),
        *_collectors(reading),
        *_alerts(reading),
    )
    return tuple(sorted(found, key=lambda each: _ORDER.index(each.severity)))


def _nodes(reading: LiveReading) -> Iterator[Trouble]:
    for node in reading.missed_nodes:
        text = f"Node {node} is not read any more: its daemon does not answer, or it has left."
        yield Trouble(TroubleSeverity.WARNING, text)


def _workers(reading: LiveReading) -> Iterator[Trouble]:
    several = len(reading.nodes) > 1
    for worker in reading.workers:
        name = named(worker.key, several)
        if what := WORKER_PROBLEMS.get(worker.state):
            broken = worker.state in DEAD_STATES
            severity = TroubleSeverity.BROKEN if broken else TroubleSeverity.NOTICE
            yield Trouble(severity, f"Worker {name} {what}{_more(worker, reading.at_seconds)}.")
        if worker.paused:
            text = f"Worker {name} is paused: it is neither killed nor started."
            yield Trouble(TroubleSeverity.NOTICE, text)
        if worker.drained:
            text = f"Worker {name} is drained by hand: it gets no requests until resumed."
            yield Trouble(TroubleSeverity.NOTICE, text)


def _more(worker: WorkerReading, now: float) -> str:
    parts = [worker.reason] if worker.reason and worker.state in DEAD_STATES else []
    if worker.restarts:
        parts.append(f"{counted(worker.restarts, 'time')} started again")
    if worker.next_start_timestamp is not None:
        parts.append(f"next start in {max(0.0, worker.next_start_timestamp - now):.0f} s")
    if worker.state == "starting" and worker.since_timestamp is not None:
        parts.append(f"for {now - worker.since_timestamp:.0f} s")
        if worker.deadline_timestamp is not None:
            parts.append(f"given up in {max(0.0, worker.deadline_timestamp - now):.0f} s")
    return f": {', '.join(parts)}" if parts else ""


def _engines(reading: LiveReading) -> Iterator[Trouble]:
    several = len(reading.nodes) > 1
    states = {worker.key: worker.state for worker in reading.workers}
    for engine in reading.engines:
        # An engine launched by its node is reported as a worker until it is ready.
        if engine.up is False and states.get(engine.key, "ready") == "ready":
            text = silence_text(named(engine.key, several), is_launched=engine.key in states)
            yield Trouble(TroubleSeverity.BROKEN, text)
        if engine.registered is False:
            text = f"Engine {named(engine.key, several)} is not registered: no request reaches it."
            yield Trouble(TroubleSeverity.BROKEN, text)


def _collectors(reading: LiveReading) -> Iterator[Trouble]:
    """Failed collectors; those of an unhealthy engine would only repeat its problem."""
    silent = {engine.key for engine in reading.engines if engine.up is False}
    silent |= {worker.key for worker in reading.workers if worker.state != "ready"}
    for node, collector in reading.failed_collectors:
        _, _, engine = collector.partition(":")
        if (node, engine) not in silent:
            several = len(reading.nodes) > 1
            where = "doctor on that node" if several else "doctor"
            name = named((node, collector), several)
            text = f"Collector {name} failed: disagg-node {where} says what that costs."
            yield Trouble(TroubleSeverity.BROKEN, text)


def _alerts(reading: LiveReading) -> Iterator[Trouble]:
    for alert in reading.alerts:
        severity = _OF_ALERTS.get(alert.severity, TroubleSeverity.NOTICE)
        about = f": {alert.about}" if alert.about else ""
        yield Trouble(severity, f"Alert {alert.name}{about}.")
