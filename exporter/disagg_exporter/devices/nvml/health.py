"""Health of a GPU as the driver reports it: throttled clocks, memory errors, Xid errors.

The binding is an argument here (`nvml`, the module pynvml), so that only one module imports it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from disagg_exporter.devices.nvml.inventory import OpenDevice, ask, text_of
from disagg_exporter.model import Throttle

_IDLE = 0x1
_REASONS = (
    (Throttle.POWER_CAP, 0x4),
    # Software, hardware.
    (Throttle.THERMAL, 0x20 | 0x40),
    # Clocks halved or worse; the second is the brake that the power supply triggers.
    (Throttle.HW_SLOWDOWN, 0x8 | 0x80),
    (Throttle.SYNC_BOOST, 0x10),
)
_NAMED = _IDLE | sum(bits for _, bits in _REASONS)


def throttles_of(clocks_event_reasons: int) -> tuple[Throttle, ...]:
    """Return the reasons in a driver's bit mask; an idle GPU's low clocks are not throttling.

    `other` is every bit not listed here: clocks that were set, and new drivers' bits.
    """
    found = [reason for reason, bits in _REASONS if clocks_event_reasons & bits]
    if clocks_event_reasons & ~_NAMED:
        found.append(Throttle.OTHER)
    return tuple(found)


def ecc_errors(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    """Return (corrected, uncorrected) memory errors in the GPU's life; None where not reported."""

    def count(kind: int) -> int | None:
        call = nvml.nvmlDeviceGetTotalEccErrors
        value = ask(nvml, call, handle, kind, nvml.NVML_AGGREGATE_ECC)
        return None if value is None else int(value)

    return (
        count(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        count(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )


def temperatures(nvml: Any, handle: Any) -> tuple[float | None, float | None]:
    """Return the temperatures of the GPU and of its memory, in °C; None where not reported."""
    of_gpu = ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    fields = ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    of_memory = None
    if fields is not None and fields[0].nvmlReturn == nvml.NVML_SUCCESS:
        of_memory = fields[0].value.uiVal or None  # boards without the sensor say 0
    return (
        None if of_gpu is None else float(of_gpu),
        None if of_memory is None else float(of_memory),
    )


_NO_INSTANCE = 0xFFFFFFFF
_MOST_AT_ONCE = 256
MOST_NUMBERS = 32
"""Most error numbers counted separately on one device; others are counted as number 0."""


def count_xid(counted: Counter[int], number: int) -> None:
    """Count an error by its number, or as number 0 beyond `MOST_NUMBERS` different ones."""
    counted[number if number in counted or len(counted) < MOST_NUMBERS else 0] += 1


class XidWatch:
    """Counts the Xid errors of all devices from now on. Reading never waits.

    An error of a whole GPU counts for each of its MIG instances.

    Args:
        nvml: The binding.
        events: The driver's event set; freed by `close`.
        devices: The devices whose GPU reports to it.
        counts: Earlier counts, by device; updated in place.
    """

    def __init__(
        self,
        nvml: Any,
        events: Any,
        devices: Iterable[OpenDevice],
        counts: dict[str, Counter[int]],
    ) -> None:
        self._nvml = nvml
        self._events = events
        self._counts = counts
        self._of_gpu: dict[str, list[tuple[str, int | None]]] = {}
        self._uuids: dict[int | None, str] = {}
        for device in devices:
            self._counts.setdefault(device.device.gpu, Counter())
            gpu = text_of(nvml.nvmlDeviceGetUUID(device.gpu_handle))
            self._of_gpu.setdefault(gpu, []).append((device.device.gpu, device.gpu_instance))
            self._uuids[_address(device.gpu_handle)] = gpu

    def poll(self) -> None:
        """Count what has been reported since the last call."""
        for _ in range(_MOST_AT_ONCE):
            event = ask(self._nvml, self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return  # nothing more, or no such call
            for device, instance in self._of_gpu.get(self._uuid(event.device), ()):
                if event.gpuInstanceId in (_NO_INSTANCE, instance) or instance is None:
                    count_xid(self._counts[device], int(event.eventData))

    def _uuid(self, handle: Any) -> str:
        uuid = ask(self._nvml, self._nvml.nvmlDeviceGetUUID, handle)
        # A GPU that has fallen off the bus does not even report its UUID any more.
        return self._uuids.get(_address(handle), "") if uuid is None else text_of(uuid)

    def counts(self, gpu: str) -> tuple[tuple[int, int], ...] | None:
        """Return (number, errors) of a device, by its key; None where it does not report."""
        counted = self._counts.get(gpu)
        return None if counted is None else tuple(sorted(counted.items()))

    def close(self) -> None:
        """Free the event set."""
        with suppress(self._nvml.NVMLError):  # the driver that allocated it is gone
            self._nvml.nvmlEventSetFree(self._events)


def open_xid_watch(
    nvml: Any, devices: Iterable[OpenDevice], counts: dict[str, Counter[int]]
) -> XidWatch | None:
    """Watch the devices whose GPU reports Xid errors; None where none does."""
    events = ask(nvml, nvml.nvmlEventSetCreate)
    if events is None:
        return None
    reporting: list[OpenDevice] = []
    answers: dict[str, bool] = {}
    for device in devices:
        # Each instance of a GPU has its own handle of it.
        bus = device.device.pci_bus_id or device.device.gpu
        if bus not in answers:
            answers[bus] = _register(nvml, device.gpu_handle, events)
        if answers[bus]:
            reporting.append(device)
    watch = XidWatch(nvml, events, reporting, counts)
    if not reporting:
        watch.close()
        return None
    return watch


def _address(handle: Any) -> int | None:
    """Return the address in a handle: the same each time, with all drivers known."""
    import ctypes  # only needed where a driver is open

    return ctypes.cast(handle, ctypes.c_void_p).value


def _register(nvml: Any, gpu: Any, events: Any) -> bool:
    try:
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    except nvml.NVMLError:
        return False
    return True
