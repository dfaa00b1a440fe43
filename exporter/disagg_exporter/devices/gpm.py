"""Activity of a GPU's parts from its performance counters: NVML's GPM, on Hopper and newer.

GPM reports no instantaneous values: it compares two samples of running counters, so a ratio is a
true mean over the time between them. It needs no root and no profiling session. The binding is an
argument here (`nvml`, the module pynvml), so that only one module imports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from disagg_exporter.model import Direction, LinkKind


class PartRatios(NamedTuple):
    """How active the parts of a device were between two samples (0 to 1); None where not reported.

    `graphics_ratio`: share of the time in which anything ran. `sm_ratio`: busy multiprocessors.
    `tensor_ratio`: multiprocessors whose tensor cores worked, in any number format. `dram_ratio`:
    memory bandwidth used, relative to the device's peak.
    """

    graphics_ratio: float | None = None
    sm_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None


NOT_REPORTED = PartRatios()
_BYTES_PER_MEBIBYTE = 2.0**20


class GpmReading(NamedTuple):
    """Counter values for the time between two samples.

    `bytes_per_second` are means over that time, in the order of `LINKS`; None where not reported.
    """

    ratios: PartRatios = NOT_REPORTED
    bytes_per_second: tuple[float | None, ...] = ()


NOTHING = GpmReading()
LINKS = (
    (LinkKind.PCIE, Direction.SENT),
    (LinkKind.PCIE, Direction.RECEIVED),
    (LinkKind.NVLINK, Direction.SENT),
    (LinkKind.NVLINK, Direction.RECEIVED),
)


class GpmMeter:
    """The counters of one GPU or MIG instance; holds two of the driver's sample buffers.

    Args:
        nvml: The binding.
        fill_sample: Fills a sample buffer with the current counters.
        samples: Two buffers; the meter frees them.
    """

    def __init__(
        self, nvml: Any, fill_sample: Callable[[Any], Any], samples: tuple[Any, Any]
    ) -> None:
        self._nvml = nvml
        self._fill_sample = fill_sample
        self._older, self._newer = samples
        self._has_older = False
        # The structure is 19 kB, so it is allocated once.
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        metrics = (
            nvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
            nvml.NVML_GPM_METRIC_SM_UTIL,
            nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
            nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
            nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
            nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
            nvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
        )
        self._request.numMetrics = len(metrics)
        for place, metric in enumerate(metrics):
            self._request.metrics[place].metricId = metric
        self._answers = tuple(_answer(self._request, place) for place in range(len(metrics)))

    def read(self) -> GpmReading:
        """Return the means since the previous call; nothing at the first and after a failed one."""
        had_older, self._has_older = self._has_older, False
        try:
            self._fill_sample(self._newer)
            self._older, self._newer = self._newer, self._older
            self._has_older = True
            if not had_older:
                return NOTHING
            # The newest sample is now the older one of the next call.
            self._request.sample1, self._request.sample2 = self._newer, self._older
            self._nvml.nvmlGpmMetricsGet(self._request)
        except self._nvml.NVMLError:
            return NOTHING
        parts = len(NOT_REPORTED)
        ratios = PartRatios(*(self._ratio(*answer) for answer in self._answers[:parts]))
        links = (self._value(*answer) for answer in self._answers[parts:])
        mebibytes = (None if value is None else max(value, 0.0) for value in links)
        return GpmReading(
            ratios, tuple(None if n is None else n * _BYTES_PER_MEBIBYTE for n in mebibytes)
        )

    def close(self) -> None:
        """Free the buffers; the meter must not be read again."""
        _free(self._nvml, self._older, self._newer)

    def _ratio(self, returned: Any, percent: Any) -> float | None:
        value = self._value(returned, percent)
        return None if value is None else min(max(value / 100, 0.0), 1.0)

    def _value(self, returned: Any, reported: Any) -> float | None:
        value: float = reported.value
        if returned.value != self._nvml.NVML_SUCCESS or not math.isfinite(value):
            return None
        return value


def _answer(request: Any, place: int) -> tuple[Any, Any]:
    """Return where the driver writes the return code of a metric, and its value.

    Reading each through the binding's structures costs more than the driver's call.
    """
    import ctypes  # only needed where a driver is open

    metric = type(request.metrics)._type_
    start = type(request).metrics.offset + place * ctypes.sizeof(metric)
    return (
        ctypes.c_uint.from_buffer(request, start + metric.nvmlReturn.offset),
        ctypes.c_double.from_buffer(request, start + metric.value.offset),
    )


def open_meter(nvml: Any, gpu: Any, gpu_instance: int | None = None) -> GpmMeter | None:
    """Open a meter of a whole GPU or one of its MIG instances; None if the driver supports none.

    Args:
        nvml: The binding.
        gpu: Handle of the whole GPU, also for an instance.
        gpu_instance: Number of the GPU instance, None for the whole.
    """
    samples: list[Any] = []
    try:
        if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            return None
        for _ in range(2):
            samples.append(nvml.nvmlGpmSampleAlloc())
    except nvml.NVMLError:
        _free(nvml, *samples)
        return None

    def fill_sample(sample: Any) -> None:
        if gpu_instance is None:
            nvml.nvmlGpmSampleGet(gpu, sample)
        else:
            nvml.nvmlGpmMigSampleGet(gpu, gpu_instance, sample)

    return GpmMeter(nvml, fill_sample, (samples[0], samples[1]))


def _free(nvml: Any, *samples: Any) -> None:
    for sample in samples:
        with suppress(nvml.NVMLError):  # the driver that allocated it is gone
            nvml.nvmlGpmSampleFree(sample)
