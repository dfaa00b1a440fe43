"""The simulated GPUs of one stand-in engine: when they are busy and what energy that takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from disagg_exporter.devices.simulated import (
    IDLE_WATTS,
    MEMORY_TOTAL_BYTES,
    SimState,
    state_path,
    write_state,
)


class GpuLoad(NamedTuple):
    """What a simulated GPU draws, and how active its parts are (0 to 1), while something runs."""

    watts: float
    sm_ratio: float
    tensor_ratio: float
    dram_ratio: float


# Chosen, not measured: prefill is bound by the tensor cores, decode by the memory's bandwidth.
PREFILL = GpuLoad(600.0, sm_ratio=0.9, tensor_ratio=0.6, dram_ratio=0.3)
DECODE = GpuLoad(400.0, sm_ratio=0.6, tensor_ratio=0.1, dram_ratio=0.75)
REST = GpuLoad(IDLE_WATTS, sm_ratio=0.0, tensor_ratio=0.0, dram_ratio=0.0)

# vLLM takes its whole share of the memory when it starts, whatever the load.
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
        """Charge the time until `now_ns` at the load until now, then go on with `load`."""
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
        folder: Where the device files lie.
        indices: The engine's GPUs; none for an engine without GPUs, which writes nothing.
        now_ns: CLOCK_MONOTONIC of the start.
    """

    def __init__(self, folder: Path, indices: Sequence[int], now_ns: int) -> None:
        self._folder = folder
        self._indices = tuple(indices)
        self._meter = GpuMeter(charged_ns=now_ns)

    def work(self, *, prefill: bool, now_ns: int) -> None:
        """A step begins."""
        self._meter.draw(PREFILL if prefill else DECODE, now_ns)

    def rest(self, now_ns: int) -> None:
        """The step has ended."""
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
        """Take the files away: nobody uses these GPUs any more."""
        for index in self._indices:
            state_path(self._folder, index).unlink(missing_ok=True)
