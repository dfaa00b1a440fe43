"""Everything the metrics page shows, made at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_exporter.model.accounts import BusyGpus, DeviceAccount, EngineAccount, TokenAccount
from disagg_exporter.model.capacity import EngineCapacity
from disagg_exporter.model.devices import Device, DeviceFailure, DeviceReading, GpuShare
from disagg_exporter.model.statuses import (
    CollectorStatus,
    DaemonCounts,
    EngineStatus,
    RouterStatus,
    WorkerStatus,
)


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """What one GPU of the node costs for an hour; `currency` by its three letters."""

    currency: str
    per_hour: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the metrics page shows, made at one instant and swapped whole.

    `fresh_until_ns` is when the page must stop showing the readings and the accounts (they are
    then absent, not frozen); `wall_offset_seconds` turns monotonic into Unix time.
    `failures` are the devices that could not be read; they have no reading.
    `retired_accounts` are sums over devices that are no more; only the node's sums count them.
    `unexpected_failures` are sums by kind of collector, those that are no more included.
    """

    taken_ns: int
    wall_offset_seconds: float
    fresh_until_ns: int
    devices: tuple[Device, ...] = ()
    readings: tuple[DeviceReading, ...] = ()
    failures: tuple[DeviceFailure, ...] = ()
    accounts: tuple[DeviceAccount, ...] = ()
    retired_accounts: tuple[DeviceAccount, ...] = ()
    engine_accounts: tuple[EngineAccount, ...] = ()
    tokens: tuple[TokenAccount, ...] = ()
    busy: tuple[BusyGpus, ...] = ()
    busy_window_seconds: float = 0.0
    engines: tuple[EngineStatus, ...] = ()
    capacities: tuple[EngineCapacity, ...] = ()
    gpu_shares: tuple[GpuShare, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()
    worker_states: tuple[str, ...] = ()
    simulated: bool = False
    router: RouterStatus | None = None
    gpu_price: GpuPrice | None = None
    daemon_counts: DaemonCounts = field(default_factory=DaemonCounts)
    left_out_engines: int | None = None
    unexpected_failures: Mapping[str, int] = field(default_factory=dict)
