"""The content of the web page as values: a row for each device and engine, and the sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disagg_exporter.landing.history import AccountHistory, HourBins
from disagg_exporter.landing.pools import ModelPools, model_pools
from disagg_exporter.landing.problems import NodeProblem, problems_of
from disagg_exporter.landing.served import ServedRates
from disagg_exporter.model import (
    Device,
    DeviceReading,
    EngineAccount,
    EngineCapacity,
    EngineState,
    EngineStatus,
    Role,
    Snapshot,
    Use,
    WorkerStatus,
)

NODE_BINS = 120
_DEVICE_BINS = 60
_LEAST_GPU_SECONDS = 1.0  # below this a share is absent (docs/accounting.md, A8)


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Weighted seconds of a minute by use."""

    seconds: Mapping[Use, float]

    @property
    def total_seconds(self) -> float:
        """The sum over all uses."""
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
    """One device; `split`, `reading` and its `hour` are None where nothing is known of it."""

    device: Device
    role: Role
    engines: tuple[str, ...]
    split: TimeBreakdown | None
    reading: DeviceReading | None
    hour: HourBins | None = None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine: its account, its capacity and, where we launched it, its worker, if known."""

    status: EngineStatus
    account: EngineAccount | None
    capacity: EngineCapacity | None
    worker: WorkerStatus | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """The whole page; `behind_seconds` is how far the accounts lag behind the clock.

    `hour` and `served` are the last hour, as far as this daemon has observed it.
    """

    taken_timestamp_seconds: float
    simulated: bool
    window_seconds: float
    behind_seconds: float
    split: TimeBreakdown
    gpus: float
    devices: tuple[DeviceRow, ...]
    engines: tuple[EngineRow, ...]
    problems: tuple[NodeProblem, ...]
    pools: tuple[ModelPools, ...] = ()
    hour: HourBins | None = None
    served: tuple[ServedRates, ...] = ()

    @property
    def runs_nothing(self) -> bool:
        """Whether no engine is present or expected."""
        return not self.engines


def view_of(snapshot: Snapshot, history: AccountHistory, now_ns: int) -> NodeView:
    """Return the view of a snapshot; a stale one has no accounts and no readings."""
    fresh = now_ns <= snapshot.fresh_until_ns
    accounts = snapshot.accounts if fresh else ()
    minutes = {account.device.gpu: (account, *history.last_minute(account)) for account in accounts}
    readings = {reading.gpu: reading for reading in snapshot.readings} if fresh else {}
    workers = {worker.worker: worker for worker in snapshot.workers}
    present = [engine for engine in snapshot.engines if engine.state is not EngineState.GONE]
    # An engine that we should run is listed even without a process.
    listed = [e for e in snapshot.engines if e.state is not EngineState.GONE or e.engine in workers]
    rows = tuple(
        DeviceRow(
            device,
            minutes[device.gpu][0].role if device.gpu in minutes else Role.UNKNOWN,
            tuple(engine.engine for engine in present if device.gpu in engine.devices),
            TimeBreakdown(minutes[device.gpu][2]) if device.gpu in minutes else None,
            readings.get(device.gpu),
            history.hour.device(minutes[device.gpu][0], _DEVICE_BINS)
            if device.gpu in minutes
            else None,
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
            EngineRow(
                engine,
                by_engine.get(engine.engine),
                full.get(engine.engine),
                workers.get(engine.engine),
            )
            for engine in listed
        ),
        problems=problems_of(snapshot, now_ns, fresh=fresh),
        pools=model_pools(snapshot, history.served.late) if fresh else (),
        hour=history.hour.node(NODE_BINS),
        served=history.served.rates if fresh else (),
    )
