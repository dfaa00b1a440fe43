"""Composes one snapshot of the node from the statuses of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.telemetry.gpu_processes import Parents, foreign_work, shares
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import (
    BusyGpus,
    CollectorStatus,
    Device,
    DeviceAccount,
    DeviceFailure,
    DeviceReading,
    DeviceSweep,
    EngineAccount,
    EngineCapacity,
    EngineState,
    EngineStatus,
    GpuPrice,
    RequestAccounts,
    Snapshot,
    TokenAccount,
)

# The page stops showing readings and accounts this long after the last sweep (invariant c).
STALE_SECONDS = 10.0
_JUMP_SECONDS = 0.5

ENGINE_STATES = {
    WorkerState.STARTING: EngineState.STARTING,
    WorkerState.READY: EngineState.READY,
    WorkerState.DRAINING: EngineState.DRAINING,
    WorkerState.BACKOFF: EngineState.DRAINING,
    WorkerState.FAILED: EngineState.DRAINING,
    WorkerState.STOPPED: EngineState.GONE,
}
"""What a worker's state means for the engine whose process is still there."""


@dataclass(frozen=True, slots=True)
class LastSweep:
    """The last device sweep and how it went; None before the first.

    It is `failing` when the sweep that should have followed could not be made.
    """

    collector: str
    sweep: DeviceSweep | None = None
    duration_seconds: float = 0.0
    success_timestamp_seconds: float | None = None
    failing: bool = False
    unexpected_failures: int = 0

    def readings(self, now_ns: int) -> tuple[DeviceReading, ...]:
        """Return the readings that are fresh enough to show."""
        return () if self.sweep is None or not self._fresh(now_ns) else self.sweep.readings

    def failures(self, now_ns: int) -> tuple[DeviceFailure, ...]:
        """Return the devices that the last sweep could not read, while it is fresh."""
        return () if self.sweep is None or not self._fresh(now_ns) else self.sweep.failures

    def status(self, now_ns: int) -> CollectorStatus:
        """Return the collector's status: failed if any device failed, or if sampling is stuck."""
        swept = self._fresh(now_ns) and self.sweep is not None and not self.sweep.failures
        return CollectorStatus(
            self.collector,
            swept and not self.failing,
            self.duration_seconds,
            self.success_timestamp_seconds,
            self.unexpected_failures,
        )

    def _fresh(self, now_ns: int) -> bool:
        return self.sweep is not None and now_ns - self.sweep.t_ns <= STALE_SECONDS * 1e9


class WallClock:
    """Unix time of monotonic instants, steady while the wall clock is only slightly corrected.

    A timestamp metric that moved with every correction would look like a restart.
    """

    def __init__(self) -> None:
        self._offset_seconds: float | None = None

    def resume(self, offset_seconds: float) -> None:
        """Continue with the previous daemon's offset, unless the wall clock has jumped since."""
        self._offset_seconds = offset_seconds

    def offset_seconds(self, now_ns: int, wall_seconds: float) -> float:
        """Return Unix time minus monotonic time; it changes only when the wall clock has jumped."""
        offset_seconds = wall_seconds - now_ns / 1e9
        known = self._offset_seconds
        if known is None or abs(offset_seconds - known) > _JUMP_SECONDS:
            self._offset_seconds = known = offset_seconds
        return known


@dataclass(frozen=True, slots=True)
class AccountingView:
    """What changes only when accounting advances, or engines appear, disappear or change state."""

    engines: tuple[tuple[str, EngineState], ...]
    accounts: tuple[DeviceAccount, ...]
    removed_accounts: tuple[DeviceAccount, ...]
    engine_accounts: tuple[EngineAccount, ...]
    tokens: tuple[TokenAccount, ...]
    capacities: tuple[EngineCapacity, ...]

    def is_of(self, engines: Sequence[EngineStatus]) -> bool:
        """Whether these are the same engines, in the same states."""
        return self.engines == _states(engines)


def read_accounting(
    ledger: Ledger, capacity_model: CapacityModel, engines: Sequence[EngineStatus], now_ns: int
) -> AccountingView:
    """Read the accounts as they are now."""
    return AccountingView(
        engines=_states(engines),
        accounts=ledger.device_accounts(),
        removed_accounts=ledger.removed_accounts(),
        engine_accounts=ledger.engine_accounts(now_ns),
        tokens=ledger.token_accounts(),
        capacities=capacity_model.capacities(engines),
    )


def _states(engines: Sequence[EngineStatus]) -> tuple[tuple[str, EngineState], ...]:
    return tuple((engine.engine, engine.state) for engine in engines)


def compose(
    certain: Snapshot,
    books: AccountingView,
    busy: tuple[tuple[BusyGpus, ...], float],
    *,
    devices: Sequence[Device],
    last_sweep: LastSweep,
    engines: Sequence[EngineStatus],
    parents: Parents,
    requests: RequestAccounts,
    gpu_price: GpuPrice | None = None,
    left_out_engines: int | None = None,
) -> Snapshot:
    """Return the `certain` snapshot with the measurements added; everything in it is frozen.

    `busy` holds the fast gauges and the seconds that they look back.
    """
    now_ns, (busy_gpus, busy_window_seconds) = certain.taken_ns, busy
    readings = last_sweep.readings(now_ns)
    return replace(
        certain,
        fresh_until_ns=now_ns + round(STALE_SECONDS * 1e9),
        devices=tuple(devices),
        readings=readings,
        failures=last_sweep.failures(now_ns),
        accounts=books.accounts,
        removed_accounts=books.removed_accounts,
        engine_accounts=books.engine_accounts,
        tokens=books.tokens,
        busy=busy_gpus,
        busy_window_seconds=busy_window_seconds,
        engines=tuple(engines),
        capacities=books.capacities,
        gpu_shares=shares(engines, readings, parents),
        foreign_work=foreign_work(engines, readings, parents),
        gpu_price=gpu_price,
        left_out_engines=left_out_engines,
        requests=requests,
    )
