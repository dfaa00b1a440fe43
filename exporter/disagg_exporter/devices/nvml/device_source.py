"""Readings of NVIDIA devices through NVML; the only module that imports its binding, pynvml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from disagg_exporter.devices.gpm import (
    LINKS,
    NOTHING,
    GpmMeter,
    GpmReading,
    PartRatios,
    open_meter,
)
from disagg_exporter.devices.links import LinkBytes
from disagg_exporter.devices.nvml.health import (
    XidWatch,
    ecc_errors,
    open_xid_watch,
    temperatures,
    throttles_of,
)
from disagg_exporter.devices.nvml.inventory import OpenDevice, Opened, ask, open_all
from disagg_exporter.devices.source import DevicesUnavailable
from disagg_exporter.model import (
    Device,
    DeviceFailure,
    DeviceReading,
    DeviceSweep,
    Direction,
    LinkKind,
)

SLOW_EVERY_NS = 1_000_000_000
"""Interval at which processes, ECC errors and clocks are read: the list of processes costs ten
times any other call, and none of them is needed more often.
"""

REOPEN_EVERY_NS = 5_000_000_000
"""Least time between attempts to restart a driver that has gone."""

_WAY_OUT = (
    "check that nvidia-smi works here (in a container: that it is given the driver), "
    "or set `devices: cpu`"
)
_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
"""All bits set is how the driver says "not available" inside a successful answer."""


class NvmlDevices:
    """The GPUs and MIG instances of this host, opened once and read by their handles.

    `busy_ratio` is the share of the time since the previous sweep in which anything ran, by the
    device's performance counters (GPM). Where there are none it is the driver's `utilization.gpu`:
    the share of its own last sample period (a sixth of a second to a second) in which some kernel
    ran, which MIG instances do not have.

    Raises:
        DevicesUnavailable: No driver, one that does not start, or no device that can be opened.
    """

    name = "nvml"

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise DevicesUnavailable(
                f"the NVML binding cannot be imported: {error}", "install nvidia-ml-py"
            ) from error
        self._nvml: Any = pynvml
        self._declined = (
            pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_NoPermission,
            pynvml.NVMLError_FunctionNotFound,
            pynvml.NVMLError_ArgumentVersionMismatch,
            pynvml.NVMLError_NoData,
            pynvml.NVMLError_NotReady,
        )
        self._reopen_at_ns: int | None = None
        self._meters: dict[str, GpmMeter] = {}
        self._xids: XidWatch | None = None
        self._xid_counts: dict[str, Counter[int]] = {}
        # Kept when the driver is reopened: a total never falls.
        self._links: dict[str, LinkBytes] = {}
        self._opened = self._open()

    def inventory(self) -> tuple[Device, ...]:
        """The devices that could be opened; a GPU in MIG mode is listed as its instances."""
        return tuple(opened.device for opened in self._opened.devices)

    def sweep(self, now_ns: int) -> DeviceSweep:
        """Read every device; a failing one is reported as a failure, without affecting others.

        GPUs that could not even be opened are failures of every sweep, by the node's name for them.
        """
        try:
            return self._sweep(now_ns)
        except self._nvml.NVMLError_Uninitialized as error:
            lost = str(error)
        # Something else in this process shut down the driver, which invalidated the handles.
        if self._reopen_at_ns is None or now_ns >= self._reopen_at_ns:
            self._reopen_at_ns = now_ns + REOPEN_EVERY_NS
            try:
                self._opened = self._open()
                return self._sweep(now_ns)
            except (DevicesUnavailable, self._nvml.NVMLError_Uninitialized) as error:
                lost = str(error)
        gone = tuple(
            DeviceFailure(device.gpu, lost, self._xids_of(device.gpu))
            for device in self.inventory()
        )
        return DeviceSweep(now_ns, failures=gone + self._opened.failures)

    def close(self) -> None:
        """Release the driver; sweeps are empty from then on."""
        if self._opened.devices:
            self._opened = Opened((), ())
            self._close_meters()
            self._shut_down()

    def _open(self) -> Opened:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise DevicesUnavailable(f"NVML does not start: {error}", _WAY_OUT) from error
        try:
            opened = open_all(self._nvml)
        except self._nvml.NVMLError as error:
            self._shut_down()
            raise DevicesUnavailable(f"NVML lists no GPUs: {error}", _WAY_OUT) from error
        if not opened.devices:
            self._shut_down()
            why = ", ".join(f"{failure.gpu}: {failure.why}" for failure in opened.failures)
            raise DevicesUnavailable(f"NVML has no device ({why or 'none listed'})", _WAY_OUT)
        self._close_meters()
        for device in opened.devices:
            if device.countable:
                meter = open_meter(self._nvml, device.gpu_handle, device.gpu_instance)
                if meter is not None:
                    self._meters[device.device.gpu] = meter
        self._xids = open_xid_watch(self._nvml, opened.devices, self._xid_counts)
        return opened

    def _close_meters(self) -> None:
        for meter in self._meters.values():
            meter.close()
        self._meters.clear()
        if self._xids is not None:
            self._xids.close()
            self._xids = None

    def _shut_down(self) -> None:
        with suppress(self._nvml.NVMLError):  # it is already shut down
            self._nvml.nvmlShutdown()

    def _sweep(self, now_ns: int) -> DeviceSweep:
        readings: list[DeviceReading] = []
        if self._xids is not None:
            self._xids.poll()
        failures = list(self._opened.failures)
        for opened in self._opened.devices:
            try:
                readings.append(self._read(opened, now_ns))
            except self._nvml.NVMLError_Uninitialized:
                raise
            except self._nvml.NVMLError as error:
                gpu = opened.device.gpu
                failures.append(DeviceFailure(gpu, str(error), self._xids_of(gpu)))
        return DeviceSweep(now_ns, tuple(readings), tuple(failures))

    def _read(self, opened: OpenDevice, now_ns: int) -> DeviceReading:
        nvml, handle = self._nvml, opened.handle
        memory = None if opened.memory is None else self._call_or_decline(opened.memory, handle)
        meter = self._meters.get(opened.device.gpu)
        counted = NOTHING if meter is None else meter.read()
        parts = counted.ratios
        utilization = power = energy = None
        # For an instance, these are refused, or answered for the whole GPU and so counted once per
        # instance.
        if not opened.mig:
            if parts.graphics_ratio is None:
                rates = self._call_or_decline(nvml.nvmlDeviceGetUtilizationRates, handle)
                utilization = None if rates is None else _known(rates.gpu)
            power = _known(ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle))
            energy = _known(ask(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle))
        throttles = ask(nvml, opened.throttles, opened.gpu_handle)
        self._read_slow_values(opened, now_ns)
        return DeviceReading(
            gpu=opened.device.gpu,
            t_ns=now_ns,
            busy_ratio=_busy(parts, utilization),
            memory_used_bytes=None if memory is None else _known(memory.used),
            memory_total_bytes=None if memory is None else _known(memory.total),
            power_watts=None if power is None else power / 1e3,
            energy_joules=None if energy is None else energy / 1e3,
            sm_clock_hertz=opened.sm_clock_hertz,
            pids=opened.pids,
            **parts._asdict(),
            throttles=None if throttles is None else throttles_of(throttles),
            ecc_corrected_errors=opened.ecc[0],
            ecc_uncorrected_errors=opened.ecc[1],
            xid_errors=self._xids_of(opened.device.gpu),
            process_ratios=opened.process_ratios,
            process_memory=opened.process_memory,
            temperature_celsius=opened.temperatures[0],
            memory_temperature_celsius=opened.temperatures[1],
            power_limit_watts=opened.power_limit_watts,
            # For an instance, the driver would return the values of the whole GPU.
            traffic=()
            if opened.mig
            else self._links.setdefault(opened.device.gpu, LinkBytes()).add(
                _links(counted), now_ns
            ),
        )

    def _xids_of(self, gpu: str) -> tuple[tuple[int, int], ...] | None:
        return None if self._xids is None else self._xids.counts(gpu)

    def _call_or_decline(self, call: Callable[[Any], Any], handle: Any) -> Any:
        """Make a call that every healthy device answers or plainly declines; None if it declines.

        Raises:
            pynvml.NVMLError: The device, not the question, is at fault.
        """
        try:
            return call(handle)
        except self._declined:
            return None

    def _read_slow_values(self, opened: OpenDevice, now_ns: int) -> None:
        if opened.slow_ns is not None and now_ns - opened.slow_ns < SLOW_EVERY_NS:
            return
        opened.slow_ns = now_ns
        value = ask(self._nvml, opened.processes, opened.handle)
        opened.process_memory = None
        if value is not None:
            # A process of another PID namespace is reported as 0, which is not a valid pid.
            opened.pids = tuple(sorted({process.pid for process in value if process.pid}))
            opened.process_memory = tuple((each.pid, each.usedGpuMemory) for each in value)
        clock = (self._nvml.nvmlDeviceGetClockInfo, opened.handle, self._nvml.NVML_CLOCK_SM)
        megahertz = _known(ask(self._nvml, *clock))
        opened.sm_clock_hertz = None if megahertz is None else megahertz * 1e6
        if not opened.mig:
            opened.ecc = ecc_errors(self._nvml, opened.handle)
            opened.process_ratios = opened.meter.read(self._nvml, opened.handle)
            limit = ask(self._nvml, self._nvml.nvmlDeviceGetEnforcedPowerLimit, opened.handle)
            opened.power_limit_watts = None if _known(limit) is None else limit / 1e3
        # An instance has the temperature of its GPU.
        opened.temperatures = temperatures(self._nvml, opened.gpu_handle)


def _links(
    counted: GpmReading,
) -> Iterable[tuple[tuple[LinkKind, Direction], float | None]]:
    return zip(LINKS, counted.bytes_per_second, strict=False)


def _busy(parts: PartRatios, utilization_percent: int | None) -> float | None:
    if parts.graphics_ratio is not None or utilization_percent is None:
        return parts.graphics_ratio
    return min(1.0, utilization_percent / 100)


def _known(value: int | None) -> int | None:
    return None if value in _NOT_AVAILABLE else value
