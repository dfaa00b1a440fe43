"""Devices and their readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from disagg_exporter.model.enums import Direction, LinkKind, Throttle

GPU_SLICES = 7
"""Compute slices that a whole GPU counts as (accounting A1)."""


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
        """Its weight as a whole number, of `GPU_SLICES`: what adds up exactly."""
        return round(self.weight * GPU_SLICES)

    @property
    def is_pseudo(self) -> bool:
        """Whether it stands for an engine on a host without GPUs; nobody else can use it."""
        return self.device == "cpu"

    def counts_as(self, other: Device) -> bool:
        """Whether its seconds are in the same unit as another's, so that they can be added up."""
        return self.gpu_name == other.gpu_name and self.weight == other.weight


class LinkTraffic(NamedTuple):
    """Bytes that went over a device's links of one kind in one direction, since it is watched."""

    link: LinkKind
    direction: Direction
    bytes: float


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Readings of one device at one instant; None where it reports none.

    `busy_ratio` (0 to 1) is its activity over the interval since the reading before: of its
    performance counters where it has them (`graphics_ratio`, beside those of its parts), else of
    its driver; None, too, where activity is reported so late that it may be over by now.
    `throttles` is empty where nothing holds the clocks back. ECC errors are those of the device's
    whole life. `xid_errors` are (number, errors) since it is watched, `process_ratios` (pid, share
    of SM time) of the processes that were sampled in the last second or so, `process_memory` (pid,
    bytes, None where not told) all that compute on it, those of another PID namespace as pid 0;
    either is None where the driver does not say. `traffic` is over its
    links since it is watched; empty where none is reported.
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
    """The share of a GPU's SM time that an engine's processes took, as its driver samples them."""

    engine: str
    gpu: str
    sm_ratio: float


class ForeignWork(NamedTuple):
    """What processes that belong to no engine of this node take of a GPU; None where unknown."""

    gpu: str
    sm_ratio: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceFailure:
    """A device that could not be read, and the driver's own words for it.

    `xid_errors` are as in a reading: they are reported of a device that answers nothing, too.
    """

    gpu: str
    why: str
    xid_errors: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceSweep:
    """One round over all devices: the readings, and the devices that failed."""

    t_ns: int
    readings: tuple[DeviceReading, ...] = ()
    failures: tuple[DeviceFailure, ...] = ()
