"""The simulated GPUs of one stand-in engine: activity and energy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from disagg_cluster.simulator.engine.hardware import H100, Gpu
from disagg_cluster.simulator.engine.roofline import Price
from disagg_cluster.simulator.gpus import watts
from disagg_exporter.devices.simulated import (
    IDLE_WATTS,
    MEMORY_TOTAL_BYTES,
    SimState,
    state_path,
    write_state,
)


class GpuLoad(NamedTuple):
    """A busy simulated GPU's power, and the activity of its parts (0 to 1)."""

    watts: float
    sm_ratio: float
    tensor_ratio: float
    dram_ratio: float


REST = GpuLoad(IDLE_WATTS, sm_ratio=0.0, tensor_ratio=0.0, dram_ratio=0.0)

_LEAST_SM_RATIO = 0.54
_SM_RATIO_OF_COMPUTE = 0.6


def load_of(gpu: Gpu, price: Price) -> GpuLoad:
    """Return a GPU's load during a step of this price; the SM ratio is invented."""
    return GpuLoad(
        watts(gpu, price),
        sm_ratio=min(1.0, _LEAST_SM_RATIO + _SM_RATIO_OF_COMPUTE * price.compute_ratio),
        tensor_ratio=price.compute_ratio,
        dram_ratio=price.memory_ratio,
    )


# vLLM takes its whole share of the memory when it starts, at any load.
_MEMORY_USED_BYTES = MEMORY_TOTAL_BYTES * 9 // 10


@dataclass(slots=True)
class GpuMeter:
    """Running totals of one simulated GPU; `load` holds from `charged_ns` on."""

    charged_ns: int
    busy_ns: int = 0
    sm_ns: float = 0.0
    tensor_ns: float = 0.0
    dram_ns: float = 0.0
    energy_joules: float = 0.0
    load: GpuLoad = REST

    def draw(self, load: GpuLoad, now_ns: int) -> None:
        """Add the time until `now_ns` at the previous load, then continue with `load`."""
        passed_ns, was = max(0, now_ns - self.charged_ns), self.load
        self.energy_joules += was.watts * passed_ns / 1e9
        if was is not REST:
            self.busy_ns += passed_ns
        self.sm_ns += passed_ns * was.sm_ratio
        self.tensor_ns += passed_ns * was.tensor_ratio
        self.dram_ns += passed_ns * was.dram_ratio
        self.charged_ns += passed_ns
        self.load = load


class SimGpus:
    """All GPUs of one engine, reported to the simulated device source through its files.

    The GPUs of a tensor-parallel group work in step, so one meter serves them all.

    Args:
        folder: Folder of the device files.
        indices: The engine's GPUs; none for an engine without GPUs, which writes nothing.
        now_ns: CLOCK_MONOTONIC of the start.
        gpu: The GPU whose power they draw; memory and idle power are the simulated source's.
    """

    def __init__(self, folder: Path, indices: Sequence[int], now_ns: int, gpu: Gpu = H100) -> None:
        self._gpu = gpu
        self._folder = folder
        self._indices = tuple(indices)
        self._meter = GpuMeter(charged_ns=now_ns)

    def work(self, price: Price, now_ns: int) -> None:
        """Record that a step of this price begins."""
        self._meter.draw(load_of(self._gpu, price), now_ns)

    def rest(self, now_ns: int) -> None:
        """Record that the step has ended."""
        self._meter.draw(REST, now_ns)

    def write(self, now_ns: int) -> None:
        """Write the totals as of `now_ns`; raises `OSError`."""
        meter = self._meter
        meter.draw(meter.load, now_ns)
        state = SimState(
            t_ns=now_ns,
            busy_ns=meter.busy_ns,
            memory_used_bytes=_MEMORY_USED_BYTES,
            power_watts=meter.load.watts,
            energy_joules=meter.energy_joules,
            pid=os.getpid(),
            sm_ns=round(meter.sm_ns),
            tensor_ns=round(meter.tensor_ns),
            dram_ns=round(meter.dram_ns),
        )
        for index in self._indices:
            write_state(self._folder, index, state)

    def leave(self) -> None:
        """Remove the files, as these GPUs are no longer used."""
        for index in self._indices:
            state_path(self._folder, index).unlink(missing_ok=True)
