"""The protocol of device sources, and the choice among them.

A source lists devices (`inventory`), reads them all at one instant (`sweep`) and never guesses: a
value that a device does not report is None, a device that cannot be read is a failure, and neither
is ever 0. Drivers are not imported here; the caller passes functions that open them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Device, DeviceReading, DeviceSweep


class DevicesUnavailable(DisaggError):  # noqa: N818 - absence of devices is a state, not a fault
    """The requested devices cannot be read at all on this host.

    Args:
        why: The error of the driver or the host.
        way_out: What a person can do about it.
    """

    def __init__(self, why: str, way_out: str) -> None:
        super().__init__(f"{why}; {way_out}")
        self.why = why
        self.way_out = way_out


class DeviceKind(StrEnum):
    """Values of `devices` in the node file."""

    AUTO = "auto"
    NVML = "nvml"
    DCGM = "dcgm"
    CPU = "cpu"
    SIM = "sim"


class DeviceSource(Protocol):
    """Something that can read the devices of this host.

    `name` is the collector's name on the page: `nvml`, `dcgm`, `sim` or `cpu`. Only one thread at a
    time may call a source; it does not matter which.
    """

    @property
    def name(self) -> str:
        """The collector's name."""

    def inventory(self) -> tuple[Device, ...]:
        """Return the devices, in the order of their index; may raise `DevicesUnavailable`."""

    def sweep(self, now_ns: int) -> DeviceSweep:
        """Read every device once. `now_ns` (CLOCK_MONOTONIC) stamps the sweep. Never raises."""

    def close(self) -> None:
        """Release the driver; a second call does nothing."""


class NoDevices:
    """A host without GPUs: nothing to list and nothing to read.

    Engines then run on pseudo-devices (`pseudo_device`), whose activity is that of their steps.
    """

    name = "cpu"

    def inventory(self) -> tuple[Device, ...]:
        """Return no devices."""
        return ()

    def sweep(self, now_ns: int) -> DeviceSweep:
        """Return a sweep without readings and without failures."""
        return DeviceSweep(t_ns=now_ns)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The source that was opened and, if it is a fallback, why the better one is unavailable."""

    source: DeviceSource
    fallback: DevicesUnavailable | None = None


def choose_devices(
    kind: DeviceKind,
    *,
    nvml: Callable[[], DeviceSource],
    sim: Callable[[], DeviceSource],
    dcgm: Callable[[], DeviceSource] | None = None,
) -> DeviceChoice:
    """Open the source that the node file asks for.

    Only `auto` falls back: to a dcgm-exporter if the file names one, then to a host without GPUs,
    with the reason in the result so that it is always logged. A kind requested by name is opened or
    refused.

    Args:
        kind: The kind in the node file.
        nvml: Opens the NVIDIA driver; raises `DevicesUnavailable` where that has no GPU.
        sim: Opens the demo's simulated devices.
        dcgm: Opens the dcgm-exporter of this node; None where the file names none.

    Raises:
        DevicesUnavailable: The kind requested by name is not available here.
    """
    match kind:
        case DeviceKind.NVML:
            return DeviceChoice(nvml())
        case DeviceKind.SIM:
            return DeviceChoice(sim())
        case DeviceKind.CPU:
            return DeviceChoice(NoDevices())
        case DeviceKind.DCGM:
            if dcgm is None:
                raise DevicesUnavailable("no dcgm-exporter is named", "set `dcgm.url`")
            return DeviceChoice(dcgm())
        case DeviceKind.AUTO:
            try:
                return DeviceChoice(nvml())
            except DevicesUnavailable as unavailable:
                return _fall_back(dcgm, unavailable)


def _fall_back(
    dcgm: Callable[[], DeviceSource] | None, unavailable: DevicesUnavailable
) -> DeviceChoice:
    if dcgm is not None:
        try:
            return DeviceChoice(dcgm(), unavailable)
        except DevicesUnavailable as neither:
            why = f"{unavailable.why}; {neither.why}"
            unavailable = DevicesUnavailable(why, unavailable.way_out)
    return DeviceChoice(NoDevices(), unavailable)


def pseudo_device(engine: str, index: int) -> Device:
    """Return the one device that an engine gets on a host without GPUs (accounting A1).

    Args:
        engine: The engine's name, used for the device's key.
        index: A number that no other engine of this node has.
    """
    return Device(gpu=f"cpu-{engine}", index=index, gpu_name="CPU", device="cpu")


_SUPPLEMENTED = (
    *("sm_ratio", "tensor_ratio", "dram_ratio", "memory_used_bytes", "memory_total_bytes"),
    *("power_watts", "energy_joules", "sm_clock_hertz"),
)


class SupplementedDevices:
    """A source whose missing values come from another: NVML with dcgm-exporter's profiling, say.

    GPUs before Hopper report no activity of SMs, tensor cores and memory through NVML. Devices that
    the main source does not list are left out; what it fails to read stays failed. GPUs are matched
    by UUID, MIG instances by PCI address and number.

    Args:
        main: Lists the devices.
        supplement: Provides values that `main` leaves out; its sweeps must not block.
    """

    def __init__(self, main: DeviceSource, supplement: DeviceSource) -> None:
        self._main = main
        self._supplement = supplement
        named = {_identity(device): device.gpu for device in supplement.inventory()}
        self._supplement_gpu = {
            device.gpu: named[_identity(device)]
            for device in main.inventory()
            if _identity(device) in named
        }
        self._metered: set[str] = set()

    @property
    def name(self) -> str:
        """The collector's name: that of the main source."""
        return self._main.name

    def inventory(self) -> tuple[Device, ...]:
        """The main source's devices."""
        return self._main.inventory()

    def sweep(self, now_ns: int) -> DeviceSweep:
        """Read both; if the other fails, only its values are missing."""
        sweep = self._main.sweep(now_ns)
        supplement = {reading.gpu: reading for reading in self._supplement.sweep(now_ns).readings}
        self._metered |= {one.gpu for one in sweep.readings if one.energy_joules is not None}
        readings = tuple(
            _supplemented(
                reading,
                supplement.get(self._supplement_gpu.get(reading.gpu, "")),
                # An older total in between would count the energy since then twice.
                metered=reading.gpu in self._metered,
            )
            for reading in sweep.readings
        )
        return replace(sweep, readings=readings)

    def close(self) -> None:
        """Close both."""
        self._main.close()
        self._supplement.close()


def _identity(device: Device) -> str:
    _, slash, instance = device.device.partition("/")
    return f"{device.pci_bus_id.lower()}/{instance}" if slash else device.gpu


def _supplemented(
    reading: DeviceReading, supplement: DeviceReading | None, *, metered: bool
) -> DeviceReading:
    if supplement is None:
        return reading
    missing = {
        name: getattr(supplement, name)
        for name in _SUPPLEMENTED
        if getattr(reading, name) is None and not (metered and name == "energy_joules")
    }
    return replace(reading, traffic=reading.traffic or supplement.traffic, **missing)
