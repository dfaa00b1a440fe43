"""Lists an NVIDIA driver's devices: its GPUs, or the instances of a GPU in MIG mode.

The binding is an argument here (`nvml`, the module pynvml), so that only one module imports it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from disagg_exporter.model import GPU_SLICES, Device, DeviceFailure

_MOST_PERCENT = 100


class ProcessMeter:
    """The process samples of one GPU since the last reading; MIG instances have none."""

    __slots__ = ("_seen_us",)

    def __init__(self) -> None:
        self._seen_us = 0

    def read(self, nvml: Any, handle: Any) -> tuple[tuple[int, float], ...] | None:
        """Return (pid, mean share of SM time) of each process sampled since; None where unknown.

        The first call only finds where the samples begin: the driver still keeps old ones.
        """
        seen_us = self._seen_us
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, seen_us)
        except nvml.NVMLError_NotFound:
            return () if seen_us else None  # none since
        except nvml.NVMLError:
            return None
        self._seen_us = max((sample.timeStamp for sample in samples), default=seen_us)
        if not seen_us:
            return None
        percents: defaultdict[int, list[int]] = defaultdict(list)
        for sample in samples:
            # Drivers report numbers beyond 100 for processes that have just ended.
            if sample.pid and sample.smUtil <= _MOST_PERCENT:
                percents[sample.pid].append(sample.smUtil)
        return tuple((pid, fmean(value) / 100) for pid, value in sorted(percents.items()))


@dataclass(slots=True)
class OpenDevice:
    """One device with everything needed to read it again without a lookup.

    `gpu_handle` is that of the whole GPU, `gpu_instance` the MIG instance's number on it; it is
    also None for a compute instance that shares its GPU instance, because nothing is counted for it
    separately. `memory`, `processes` and `throttles` are the newest calls that this driver has for
    them, or None. `pids`, `process_memory`, `ecc`, `sm_clock_hertz`, `process_ratios`,
    `temperatures` (of the GPU and of its memory) and `power_limit_watts` were read at `slow_ns`;
    they are read less often than the rest.
    """

    device: Device
    handle: Any
    mig: bool
    gpu_handle: Any
    gpu_instance: int | None
    memory: Callable[[Any], Any] | None
    processes: Callable[[Any], Any] | None
    throttles: Callable[[Any], Any] | None
    pids: tuple[int, ...] = ()
    process_memory: tuple[tuple[int, int | None], ...] | None = None
    ecc: tuple[int | None, int | None] = (None, None)
    sm_clock_hertz: float | None = None
    slow_ns: int | None = None
    meter: ProcessMeter = field(default_factory=ProcessMeter)
    process_ratios: tuple[tuple[int, float], ...] | None = None
    temperatures: tuple[float | None, float | None] = (None, None)
    power_limit_watts: float | None = None

    @property
    def countable(self) -> bool:
        """Whether performance counters can be read for this device alone."""
        return not self.mig or self.gpu_instance is not None


@dataclass(frozen=True, slots=True)
class Opened:
    """All devices of the driver, and the GPUs that failed before they reported their UUID.

    Those failures have the node's name for the GPU (`nvidia3`).
    """

    devices: tuple[OpenDevice, ...]
    failures: tuple[DeviceFailure, ...]


def open_all(nvml: Any) -> Opened:
    """Open every device; one that fails does not prevent the others from being opened.

    Raises:
        nvml.NVMLError: The driver does not even count its GPUs.
    """
    devices: list[OpenDevice] = []
    failures: list[DeviceFailure] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            devices.extend(_open_gpu(nvml, index))
        except nvml.NVMLError as error:
            failures.append(DeviceFailure(f"nvidia{index}", str(error)))
    return Opened(tuple(devices), tuple(failures))


def _open_gpu(nvml: Any, index: int) -> list[OpenDevice]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    minor = ask(nvml, nvml.nvmlDeviceGetMinorNumber, handle)
    whole = Device(
        gpu=text_of(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        gpu_name=text_of(nvml.nvmlDeviceGetName(handle)),
        device=f"nvidia{index if minor is None else minor}",
        pci_bus_id="" if pci is None else text_of(pci.busId),
    )
    mode = ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return [_with_calls(nvml, whole, handle, handle)]
    instances = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError_NotFound:
            continue  # slots may be empty between used ones
        instances.append((instance, nvml.nvmlDeviceGetGpuInstanceId(instance)))
    sharers = Counter(number for _, number in instances)
    return [
        _with_calls(
            nvml,
            _instance(nvml, instance, number, whole),
            instance,
            handle,
            mig=True,
            gpu_instance=number if sharers[number] == 1 else None,
        )
        for instance, number in instances
    ]


def _instance(nvml: Any, handle: Any, gpu_instance: int, whole: Device) -> Device:
    compute_instance = nvml.nvmlDeviceGetComputeInstanceId(handle)
    suffix = f"/ci{compute_instance}" if compute_instance else ""
    slices = nvml.nvmlDeviceGetAttributes(handle).computeInstanceSliceCount
    return Device(
        gpu=text_of(nvml.nvmlDeviceGetUUID(handle)),
        index=whole.index,
        # Weighted seconds of an instance are seconds of its GPU, so they have the GPU's name.
        gpu_name=whole.gpu_name,
        device=f"{whole.device}/gi{gpu_instance}{suffix}",
        pci_bus_id=whole.pci_bus_id,
        weight=slices / GPU_SLICES,
    )


def _with_calls(
    nvml: Any,
    device: Device,
    handle: Any,
    gpu_handle: Any,
    *,
    mig: bool = False,
    gpu_instance: int | None = None,
) -> OpenDevice:
    memory = _first_known(
        nvml,
        handle,
        # Version 2 does not count the driver's own reserve as used.
        partial(nvml.nvmlDeviceGetMemoryInfo, version=nvml.nvmlMemory_v2),
        nvml.nvmlDeviceGetMemoryInfo,
    )
    processes = _first_known(
        nvml,
        handle,
        # Not the unversioned name: on an older driver that raises no NVMLError.
        nvml.nvmlDeviceGetComputeRunningProcesses_v3,
        nvml.nvmlDeviceGetComputeRunningProcesses_v2,
    )
    throttles = _first_known(
        nvml,
        gpu_handle,
        nvml.nvmlDeviceGetCurrentClocksEventReasons,
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
    )
    value = ask(nvml, memory, handle)
    return OpenDevice(
        device=replace(device, memory_total_bytes=None if value is None else int(value.total)),
        handle=handle,
        mig=mig,
        gpu_handle=gpu_handle,
        gpu_instance=gpu_instance,
        memory=memory,
        processes=processes,
        throttles=throttles,
    )


def ask(nvml: Any, call: Callable[..., Any] | None, *arguments: Any) -> Any:
    """Return a call's result; None if it fails for any reason, or there is no such call."""
    try:
        return None if call is None else call(*arguments)
    except nvml.NVMLError:
        return None


def _first_known(
    nvml: Any, handle: Any, *calls: Callable[[Any], Any]
) -> Callable[[Any], Any] | None:
    for call in calls:
        try:
            call(handle)
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):
            continue
        except nvml.NVMLError:
            return call  # this driver has it, even where this device refuses it today
        return call
    return None


def text_of(value: str | bytes) -> str:
    """Return a string; the binding's older releases and its structures return bytes."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
