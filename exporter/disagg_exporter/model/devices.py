"""Devices and their readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from disagg_exporter.model.enums import Direction, LinkKind, Throttle

GPU_SLICES = 7
"""Compute slices of a whole GPU (accounting A1)."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, MIG instance or, on a host without GPUs, the pseudo-device of one engine.

    `gpu` is the UUID and the key everywhere; `device` is the node's own name for it
    (`nvidia0`, `cpu`, `sim0`). `weight` is 1, or the MIG compute slices / 7 (accounting A1).
    """

    gpu: str
    index: int
    gpu_name: str
    device: str
    pci_bus_id: str = ""
    weight: float = 1.0
    memory_total_bytes: int | None = None

    @property
    def slices(self) -> int:
        """Its weight as an integer number of slices out of `GPU_SLICES`, which adds up exactly."""
        return round(self.weight * GPU_SLICES)

    @property
    def is_pseudo(self) -> bool:
        """Whether it stands for an engine on a host without GPUs; nothing else can use it."""
        return self.device == "cpu"

    def counts_as(self, other: Device) -> bool:
        """Whether its seconds have the same unit as the other's, so that they can be added up."""
        return self.gpu_name == other.gpu_name and self.weight == other.weight


class LinkTraffic(NamedTuple):
    """Bytes over a device's links of one kind in one direction, since watching began."""

    link: LinkKind
    direction: Direction
    bytes: float


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Readings of one device at one instant; None where it reports none.

    `busy_ratio` (0 to 1) is its activity since the previous reading: from performance counters
    where it has them (`graphics_ratio`, beside the ratios of its parts), else from the driver. It
    is also None where activity is reported so late that it may be over by now. `throttles` is empty
    where nothing holds the clocks back. ECC errors cover the device's whole life. `xid_errors` are
    (number, errors) since watching began. `process_ratios` are (pid, share of SM time) of the
    processes sampled in the last second or so; `process_memory` is (pid, bytes, None where not
    reported) of all that compute on it, those of another PID namespace as pid 0; each is None where
    the driver does not report it. `traffic` is that of its links since watching began; empty where
    none is reported.
    """

    gpu: str
    t_ns: int
    busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    sm_clock_hertz: float | None = None
    pids: tuple[int, ...] = ()
    graphics_ratio: float | None = None
    sm_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None
    throttles: tuple[Throttle, ...] | None = None
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    xid_errors: tuple[tuple[int, int], ...] | None = None
    process_ratios: tuple[tuple[int, float], ...] | None = None
    process_memory: tuple[tuple[int, int | None], ...] | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    power_limit_watts: float | None = None
    traffic: tuple[LinkTraffic, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Share of a GPU's SM time that an engine's processes took, as sampled by the driver."""

    engine: str
    gpu: str
    sm_ratio: float


class ForeignWork(NamedTuple):
    """Use of a GPU by processes that belong to no engine of this node; None where unknown."""

    gpu: str
    sm_ratio: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceFailure:
    """A device that could not be read, with the driver's error text.

    `xid_errors` are as in a reading: they are reported even for a device that does not answer.
    """

    gpu: str
    why: str
    xid_errors: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceSweep:
    """One poll of all devices: the readings, and the devices that failed."""

    t_ns: int
    readings: tuple[DeviceReading, ...] = ()
    failures: tuple[DeviceFailure, ...] = ()
