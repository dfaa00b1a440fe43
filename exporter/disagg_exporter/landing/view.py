"""What the page for people shows, as values: a row for each device and engine, and the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import (
    Device,
    DeviceAccount,
    DeviceReading,
    EngineAccount,
    EngineCapacity,
    EngineState,
    EngineStatus,
    Role,
    Snapshot,
    Throttle,
    Use,
)

_HARMFUL = {Throttle.THERMAL: "it is too hot", Throttle.HW_SLOWDOWN: "its hardware slows it down"}
_WORKERS = {
    "failed": "has crashed so often that it was given up",
    "backoff": "has crashed and waits to be started again",
    "starting": "is starting",
    "draining": "is draining",
}


class Severity(StrEnum):
    """Severity of a problem: something is broken, or is starting or stopping."""

    BROKEN = "broken"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """One sentence and how much it matters."""

    severity: Severity
    text: str


def problems_of(snapshot: Snapshot, now_ns: int, *, fresh: bool) -> tuple[NodeProblem, ...]:
    """All that is wrong, broken things first."""
    if not fresh:
        age_seconds = (now_ns - snapshot.taken_ns) / 1e9
        text = (
            f"The daemon has measured nothing for {age_seconds:.0f} s: its accounts are not shown."
        )
        stale = [NodeProblem(Severity.BROKEN, text)]
    else:
        stale = [*_devices(snapshot)]
    found = [*stale, *_workers(snapshot), *_engines(snapshot), *_collectors(snapshot, now_ns)]
    return tuple(sorted(found, key=lambda problem: problem.severity is not Severity.BROKEN))


def _workers(snapshot: Snapshot) -> Iterator[NodeProblem]:
    for worker in snapshot.workers:
        if what := _WORKERS.get(worker.state):
            broken = worker.state in ("failed", "backoff")
            times = f", {worker.restarts} times started again" if worker.restarts else ""
            text = f"Worker {worker.worker} {what}{times}."
            yield NodeProblem(Severity.BROKEN if broken else Severity.NOTICE, text)
        if worker.paused:
            text = f"Worker {worker.worker} is paused: it is neither killed nor started."
            yield NodeProblem(Severity.NOTICE, text)


def _engines(snapshot: Snapshot) -> Iterator[NodeProblem]:
    for engine in snapshot.engines:
        if engine.state is EngineState.READY and engine.up is False:
            text = f"Engine {engine.engine} does not answer its health probe."
            yield NodeProblem(Severity.BROKEN, text)
    page = snapshot.router.page if snapshot.router else None
    if snapshot.router and page:
        names = {engine.url: engine.name for engine in snapshot.router.engines}
        for url, well in page.worker_health.items():
            if not well:
                text = f"The router holds {names.get(url, url)} unwell and sends it no requests."
                yield NodeProblem(Severity.BROKEN, text)


def _collectors(snapshot: Snapshot, now_ns: int) -> Iterator[NodeProblem]:
    now_seconds = now_ns / 1e9 + snapshot.wall_offset_seconds
    for collector in snapshot.collectors:
        if not collector.success:
            last = collector.last_success_timestamp_seconds
            since = (
                "it never succeeded"
                if last is None
                else f"it last succeeded {max(0.0, now_seconds - last):.0f} s ago"
            )
            yield NodeProblem(Severity.BROKEN, f"Collector {collector.collector} failed; {since}.")


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


LastMinute = Callable[[DeviceAccount], tuple[int, dict[Use, float]]]

_LEAST_GPU_SECONDS = 1.0  # below this a share is absent (docs/accounting.md, A8)


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Weighted seconds of a minute by what they were used for."""

    seconds: Mapping[Use, float]

    @property
    def total_seconds(self) -> float:
        """All of them."""
        return sum(self.seconds.values())

    @property
    def ratios(self) -> dict[Use, float]:
        """Each use's share, in the order of `Use`; empty where there is no time at all."""
        total = self.total_seconds
        return {use: self.seconds.get(use, 0.0) / total for use in Use} if total > 0 else {}

    @property
    def occupancy_ratio(self) -> float | None:
        """Phase seconds / observed seconds; None where nothing was observed."""
        observed = self.total_seconds - self.seconds.get(Use.UNOBSERVED, 0.0)
        return (self.prefill_seconds + self.decode_seconds) / observed if observed > 0 else None

    @property
    def prefill_share_ratio(self) -> float | None:
        """P / (P + D); None below one busy GPU-second."""
        busy = self.prefill_seconds + self.decode_seconds
        return self.prefill_seconds / busy if busy >= _LEAST_GPU_SECONDS else None

    @property
    def prefill_decode_ratio(self) -> float | None:
        """P / D; None while D is 0, and below one busy GPU-second."""
        if self.prefill_share_ratio is None or self.decode_seconds <= 0:
            return None
        return self.prefill_seconds / self.decode_seconds

    @property
    def prefill_seconds(self) -> float:
        """Weighted seconds in prefill."""
        return self.seconds.get(Use.PREFILL, 0.0)

    @property
    def decode_seconds(self) -> float:
        """Weighted seconds in decode."""
        return self.seconds.get(Use.DECODE, 0.0)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device; `split` and `reading` are None where nothing is known of it."""

    device: Device
    role: Role
    engines: tuple[str, ...]
    split: TimeBreakdown | None
    reading: DeviceReading | None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine: what its supervisor knows, its account and its capacity, where they are known."""

    status: EngineStatus
    account: EngineAccount | None
    capacity: EngineCapacity | None


@dataclass(frozen=True, slots=True)
class NodeView:
    """The whole page; `behind_seconds` is how far the accounts lag behind the clock."""

    taken_timestamp_seconds: float
    simulated: bool
    window_seconds: float
    behind_seconds: float
    split: TimeBreakdown
    gpus: float
    devices: tuple[DeviceRow, ...]
    engines: tuple[EngineRow, ...]
    problems: tuple[NodeProblem, ...]


def view_of(snapshot: Snapshot, last_minute: LastMinute, now_ns: int) -> NodeView:
    """What to show of a snapshot; a stale one shows no accounts and no readings."""
    fresh = now_ns <= snapshot.fresh_until_ns
    accounts = snapshot.accounts if fresh else ()
    minutes = {account.device.gpu: (account, *last_minute(account)) for account in accounts}
    readings = {reading.gpu: reading for reading in snapshot.readings} if fresh else {}
    present = [engine for engine in snapshot.engines if engine.state is not EngineState.GONE]
    rows = tuple(
        DeviceRow(
            device,
            minutes[device.gpu][0].role if device.gpu in minutes else Role.UNKNOWN,
            tuple(engine.engine for engine in present if device.gpu in engine.devices),
            TimeBreakdown(minutes[device.gpu][2]) if device.gpu in minutes else None,
            readings.get(device.gpu),
        )
        for device in snapshot.devices
    )
    by_engine = {account.engine: account for account in snapshot.engine_accounts} if fresh else {}
    full = {capacity.engine: capacity for capacity in snapshot.capacities} if fresh else {}
    windows_ns = [window_ns for _, window_ns, _ in minutes.values()]
    spent = [seconds for _, _, seconds in minutes.values()]
    marks_ns = [account.watermark_ns for account in accounts]
    return NodeView(
        taken_timestamp_seconds=snapshot.taken_ns / 1e9 + snapshot.wall_offset_seconds,
        simulated=snapshot.simulated,
        window_seconds=max(windows_ns, default=0) / 1e9,
        behind_seconds=max(0, now_ns - min(marks_ns, default=now_ns)) / 1e9,
        split=TimeBreakdown({use: sum(each.get(use, 0.0) for each in spent) for use in Use}),
        gpus=sum(device.weight for device in snapshot.devices),
        devices=rows,
        engines=tuple(
            EngineRow(engine, by_engine.get(engine.engine), full.get(engine.engine))
            for engine in present
        ),
        problems=problems_of(snapshot, now_ns, fresh=fresh),
    )
