"""What the page for people shows, as values: a row for each device and engine, and the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from disagg_exporter.landing.troubles import Trouble, troubles_of
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
    Use,
)

LastMinute = Callable[[DeviceAccount], tuple[int, dict[Use, float]]]

_LEAST_GPU_SECONDS = 1.0  # below this a share is absent (docs/accounting.md, A8)


@dataclass(frozen=True, slots=True)
class Split:
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
    split: Split | None
    reading: DeviceReading | None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine: what its supervisor knows, its books and how full it is, where they are known."""

    status: EngineStatus
    account: EngineAccount | None
    capacity: EngineCapacity | None


@dataclass(frozen=True, slots=True)
class NodeView:
    """The whole page; `behind_seconds` is how far the books lie behind the clock."""

    taken_timestamp_seconds: float
    simulated: bool
    window_seconds: float
    behind_seconds: float
    split: Split
    gpus: float
    devices: tuple[DeviceRow, ...]
    engines: tuple[EngineRow, ...]
    troubles: tuple[Trouble, ...]


def view_of(snapshot: Snapshot, last_minute: LastMinute, now_ns: int) -> NodeView:
    """What to show of a snapshot; one that is stale shows no books and no readings."""
    fresh = now_ns <= snapshot.fresh_until_ns
    accounts = snapshot.accounts if fresh else ()
    told = {account.device.gpu: (account, *last_minute(account)) for account in accounts}
    readings = {reading.gpu: reading for reading in snapshot.readings} if fresh else {}
    present = [engine for engine in snapshot.engines if engine.state is not EngineState.GONE]
    rows = tuple(
        DeviceRow(
            device,
            told[device.gpu][0].role if device.gpu in told else Role.UNKNOWN,
            tuple(engine.engine for engine in present if device.gpu in engine.devices),
            Split(told[device.gpu][2]) if device.gpu in told else None,
            readings.get(device.gpu),
        )
        for device in snapshot.devices
    )
    books = {account.engine: account for account in snapshot.engine_accounts} if fresh else {}
    full = {capacity.engine: capacity for capacity in snapshot.capacities} if fresh else {}
    windows_ns = [window_ns for _, window_ns, _ in told.values()]
    marks_ns = [account.watermark_ns for account in accounts]
    return NodeView(
        taken_timestamp_seconds=snapshot.taken_ns / 1e9 + snapshot.wall_offset_seconds,
        simulated=snapshot.simulated,
        window_seconds=max(windows_ns, default=0) / 1e9,
        behind_seconds=max(0, now_ns - min(marks_ns, default=now_ns)) / 1e9,
        split=_sum(seconds for _, _, seconds in told.values()),
        gpus=sum(device.weight for device in snapshot.devices),
        devices=rows,
        engines=tuple(
            EngineRow(engine, books.get(engine.engine), full.get(engine.engine))
            for engine in present
        ),
        troubles=troubles_of(snapshot, now_ns, fresh=fresh),
    )


def _sum(parts: Iterable[Mapping[Use, float]]) -> Split:
    total = dict.fromkeys(Use, 0.0)
    for part in parts:
        for use, seconds in part.items():
            total[use] += seconds
    return Split(total)
