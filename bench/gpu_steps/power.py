"""The energy counter, power and clock of the GPU, sampled by a thread."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import pynvml

POWER_COLUMNS = ("t_us", "energy_mj", "power_mw", "sm_mhz", "busy_percent", "celsius")
_EVERY_SECONDS = 0.1


class PowerSamples:
    """Samples device 0 while it is entered; times are since `begun_ns`."""

    def __init__(self, begun_ns: int) -> None:
        self.rows: list[tuple[int, ...]] = []
        self._begun_ns = begun_ns
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        pynvml.nvmlInit()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self._over.wait(_EVERY_SECONDS):
            energy = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
            t_us = (time.monotonic_ns() - self._begun_ns) // 1000
            self.rows.append(
                (
                    t_us,
                    energy,
                    pynvml.nvmlDeviceGetPowerUsage(gpu),
                    pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
                    pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
                    pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
                )
            )
