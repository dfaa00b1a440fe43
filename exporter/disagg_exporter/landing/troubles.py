"""What is wrong with a node, said in whole sentences, the worst first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import EngineState, Snapshot, Throttle

_HARMFUL = {
    Throttle.THERMAL: "it is too hot",
    Throttle.HW_SLOWDOWN: "its hardware slows it down",
}
_WORKERS = {
    "failed": "has crashed so often that it was given up",
    "backoff": "has crashed and waits to be started again",
    "starting": "is starting",
    "draining": "is draining",
}


class Weight(StrEnum):
    """How much a trouble matters: something is broken, or is on its way."""

    BROKEN = "broken"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One sentence and how much it matters."""

    weight: Weight
    text: str


def troubles_of(snapshot: Snapshot, now_ns: int, *, fresh: bool) -> tuple[Trouble, ...]:
    """All that is wrong, broken things first."""
    if not fresh:
        age_seconds = (now_ns - snapshot.taken_ns) / 1e9
        text = f"The daemon has measured nothing for {age_seconds:.0f} s: its books are not shown."
        stale = [Trouble(Weight.BROKEN, text)]
    else:
        stale = [*_devices(snapshot)]
    found = [*stale, *_workers(snapshot), *_engines(snapshot), *_collectors(snapshot, now_ns)]
    return tuple(sorted(found, key=lambda trouble: trouble.weight is not Weight.BROKEN))


def _workers(snapshot: Snapshot) -> Iterator[Trouble]:
    for worker in snapshot.workers:
        if what := _WORKERS.get(worker.state):
            broken = worker.state in ("failed", "backoff")
            times = f", {worker.restarts} times started again" if worker.restarts else ""
            text = f"Worker {worker.worker} {what}{times}."
            yield Trouble(Weight.BROKEN if broken else Weight.NOTICE, text)
        if worker.paused:
            text = f"Worker {worker.worker} is paused: it is neither killed nor started."
            yield Trouble(Weight.NOTICE, text)


def _engines(snapshot: Snapshot) -> Iterator[Trouble]:
    for engine in snapshot.engines:
        if engine.state is EngineState.READY and engine.up is False:
            text = f"Engine {engine.engine} does not answer its health probe."
            yield Trouble(Weight.BROKEN, text)
    page = snapshot.router.page if snapshot.router else None
    if snapshot.router and page:
        names = {engine.url: engine.name for engine in snapshot.router.engines}
        for url, well in page.worker_health.items():
            if not well:
                text = f"The router holds {names.get(url, url)} unwell and sends it no requests."
                yield Trouble(Weight.BROKEN, text)


def _collectors(snapshot: Snapshot, now_ns: int) -> Iterator[Trouble]:
    now_seconds = now_ns / 1e9 + snapshot.wall_offset_seconds
    for collector in snapshot.collectors:
        if not collector.success:
            last = collector.last_success_timestamp_seconds
            since = (
                "it never succeeded"
                if last is None
                else f"it last succeeded {max(0.0, now_seconds - last):.0f} s ago"
            )
            yield Trouble(Weight.BROKEN, f"Collector {collector.collector} failed; {since}.")


def _devices(snapshot: Snapshot) -> Iterator[Trouble]:
    read = {reading.gpu for reading in snapshot.readings}
    names = {device.gpu: f"GPU {device.index}" for device in snapshot.devices}
    for device in snapshot.devices:
        if not device.is_pseudo and device.gpu not in read:
            yield Trouble(Weight.BROKEN, f"{names[device.gpu]} cannot be read.")
    for reading in snapshot.readings:
        for throttle in reading.throttles or ():
            if throttle in _HARMFUL:
                text = f"The clocks of {names.get(reading.gpu, reading.gpu)} are held back"
                yield Trouble(Weight.BROKEN, f"{text}: {_HARMFUL[throttle]}.")
