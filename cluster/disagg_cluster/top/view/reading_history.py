"""Recent readings: the base of rates, timelines of devices, and the changes between readings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol, TypeVar

from disagg_cluster.top.readings.values import EngineReading, LiveReading, WorkerReading
from disagg_cluster.top.view.gpu_history import WINDOW_SECONDS, GpuTimeline
from disagg_cluster.top.view.values import NodeEvent
from disagg_exporter.model.counted import counted

LEAST_RATE_SECONDS = 0.9
"""No rates are computed over shorter times."""
_STEP_SECONDS = 5.0
_MOST_EVENTS = 200


class _Keyed(Protocol):
    @property
    def key(self) -> tuple[str, str]: ...


T = TypeVar("T", bound=_Keyed)


class ReadingHistory:
    """Keeps readings as long as views need them; used by one thread."""

    def __init__(self) -> None:
        self._readings: deque[LiveReading] = deque()
        self.timelines: dict[tuple[str, str], GpuTimeline] = {}
        self.events: deque[NodeEvent] = deque(maxlen=_MOST_EVENTS)

    @property
    def newest(self) -> LiveReading | None:
        """The latest reading; None before the first."""
        return self._readings[-1] if self._readings else None

    @property
    def earlier(self) -> LiveReading | None:
        """The reading one window before the newest, or the oldest one since; None without any."""
        return self._readings[0] if len(self._readings) > 1 else None

    @property
    def before_newest(self) -> tuple[LiveReading, ...]:
        """All kept readings before the newest, oldest first."""
        return tuple(self._readings)[:-1]

    @property
    def rates_seconds(self) -> float | None:
        """The time between the newest reading and the earliest one kept; None for one reading."""
        newest, earlier = self.newest, self.earlier
        if newest is None or earlier is None:
            return None
        return newest.at_seconds - earlier.at_seconds

    @property
    def has_recent_use(self) -> bool:
        """Whether rates and the recent use of each device are known."""
        newest, passed = self.newest, self.rates_seconds
        if newest is None or passed is None:
            return False
        lines = [self.timelines[gpu.key] for gpu in newest.gpus if gpu.watermark is not None]
        return passed >= LEAST_RATE_SECONDS and all(line.has_recent_use for line in lines)

    def add_past(self, reading: LiveReading) -> None:
        """Add the devices of an older reading, without using it for comparisons."""
        for gpu in reading.gpus:
            self.timelines.setdefault(gpu.key, GpuTimeline()).add(gpu)

    def add(self, reading: LiveReading) -> None:
        """Add a reading, later than all others."""
        if self._readings:
            self.events.extend(events_between(self._readings[-1], reading))
        self.add_past(reading)
        there = {gpu.key for gpu in reading.gpus}
        for gone in [key for key in self.timelines if key not in there]:
            del self.timelines[gone]
        self._readings.append(reading)
        # A reading of a large cluster takes megabytes, so those close together are not all kept.
        if (
            len(self._readings) > 2
            and reading.at_seconds - self._readings[-3].at_seconds < _STEP_SECONDS
        ):
            del self._readings[-2]
        while (
            len(self._readings) > 2
            and reading.at_seconds - self._readings[1].at_seconds > WINDOW_SECONDS
        ):
            self._readings.popleft()


def events_between(before: LiveReading, after: LiveReading) -> Iterator[NodeEvent]:
    """Texts of the changes between two readings."""
    several = len(after.nodes) > 1
    # While an engine starts or ends, the states of its worker already show it.
    in_motion = _in_motion(before) | _in_motion(after)
    for what in (
        *_changes(_by_key(before.workers), _by_key(after.workers), _worker_event, several),
        *_changes(
            _by_key(before.engines, in_motion),
            _by_key(after.engines, in_motion),
            _engine_event,
            several,
        ),
        *_collector_events(before, after, several),
    ):
        yield NodeEvent(after.at_seconds, what)


def _by_key(rows: tuple[T, ...], but: Collection[tuple[str, str]] = ()) -> dict[tuple[str, str], T]:
    return {row.key: row for row in rows if row.key not in but}


def _changes(
    before: Mapping[tuple[str, str], T],
    after: Mapping[tuple[str, str], T],
    describe: Callable[[T | None, T | None], str],
    several: bool,
) -> Iterator[str]:
    for key in sorted({*before, *after}):
        if text := describe(before.get(key), after.get(key)):
            yield named(key, several) + text


def named(key: tuple[str, str], several: bool) -> str:
    """A name, prefixed by its node if there are several."""
    node, name = key
    return f"{node}/{name}" if several and node else name


def _worker_event(before: WorkerReading | None, after: WorkerReading | None) -> str:
    if before is None or after is None:
        return ""
    if before.state != after.state:
        why = f": {after.reason}" if after.reason else ""
        return f" {before.state} → {after.state}{why}"
    if before.restarts != after.restarts:
        return f" was started again ({counted(after.restarts, 'time')} so far)"
    if before.paused != after.paused:
        return " is paused" if after.paused else " is supervised again"
    if before.drained != after.drained:
        return " is drained by hand" if after.drained else " gets requests again"
    return ""


def _engine_event(before: EngineReading | None, after: EngineReading | None) -> str:
    if before is None or after is None:
        role = f" ({after.role})" if after is not None and after.role else ""
        return " is gone" if after is None else f" was found{role}"
    if before.role != after.role:
        return f" is {after.role} now, was {before.role}"
    if before.up is not after.up and after.up is not None:
        return " answers" if after.up else " does not answer"
    return ""


def _in_motion(reading: LiveReading) -> set[tuple[str, str]]:
    return {worker.key for worker in reading.workers if worker.state != "ready"}


def _collector_events(before: LiveReading, after: LiveReading, several: bool) -> Iterator[str]:
    old, new = set(before.failed_collectors), set(after.failed_collectors)
    for node, collector in sorted(new - old):
        yield f"collector {named((node, collector), several)} failed"
    for node, collector in sorted(old - new):
        if node in after.nodes:
            yield f"collector {named((node, collector), several)} succeeds again"
