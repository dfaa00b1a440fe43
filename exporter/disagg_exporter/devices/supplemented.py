"""Devices read by one source, with what that does not tell taken from another."""

from __future__ import annotations

from dataclasses import replace

from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.model import Device, DeviceReading, DeviceSweep

_FILLED = (
    "sm_ratio",
    "tensor_ratio",
    "dram_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "energy_joules",
    "sm_clock_hertz",
)


class SupplementedDevices:
    """A source whose readings are filled up: NVML, say, with dcgm-exporter's profiling counters.

    GPUs before Hopper tell no activity of SMs, tensor cores and memory through NVML. What the
    first source does not list is not there; what it fails to read stays failed. Which GPUs are
    the same is told by UUID, of MIG instances by PCI address and number.

    Args:
        main: Whose devices these are.
        more: Asked for what `main` leaves out; its sweeps must not wait for anybody.
    """

    def __init__(self, main: DeviceSource, more: DeviceSource) -> None:
        self._main = main
        self._more = more
        named = {_identity(device): device.gpu for device in more.inventory()}
        self._twin = {
            device.gpu: named[_identity(device)]
            for device in main.inventory()
            if _identity(device) in named
        }

    @property
    def name(self) -> str:
        """The collector's name: that of the main source."""
        return self._main.name

    def inventory(self) -> tuple[Device, ...]:
        """The main source's devices."""
        return self._main.inventory()

    def sweep(self, now_ns: int) -> DeviceSweep:
        """Read both; a failure of the other only leaves its values out."""
        sweep = self._main.sweep(now_ns)
        more = {reading.gpu: reading for reading in self._more.sweep(now_ns).readings}
        readings = tuple(
            _filled(reading, more.get(self._twin.get(reading.gpu, "")))
            for reading in sweep.readings
        )
        return replace(sweep, readings=readings)

    def close(self) -> None:
        """Let go of both."""
        self._main.close()
        self._more.close()


def _identity(device: Device) -> str:
    _, slash, instance = device.device.partition("/")
    return f"{device.pci_bus_id.lower()}/{instance}" if slash else device.gpu


def _filled(reading: DeviceReading, more: DeviceReading | None) -> DeviceReading:
    if more is None:
        return reading
    missing = {name: getattr(more, name) for name in _FILLED if getattr(reading, name) is None}
    return replace(reading, **missing)
