"""The simulated GPUs of one stand-in engine: when they are busy and what energy that takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_exporter.simdevices import (
    IDLE_WATTS,
    MEMORY_TOTAL_BYTES,
    SimState,
    state_path,
    write_state,
)

PREFILL_WATTS = 600.0
DECODE_WATTS = 400.0
# vLLM takes its whole share of the memory when it starts, whatever the load.
_MEMORY_USED_BYTES = MEMORY_TOTAL_BYTES * 9 // 10


@dataclass(slots=True)
class GpuMeter:
    """Running totals of one simulated GPU; `watts` holds from `charged_ns` on."""

    charged_ns: int
    busy_ns: int = 0
    energy_joules: float = 0.0
    watts: float = IDLE_WATTS

    def draw(self, watts: float, now_ns: int) -> None:
        """Charge the time until `now_ns` at the power until now, then go on with `watts`."""
        passed_ns = max(0, now_ns - self.charged_ns)
        self.energy_joules += self.watts * passed_ns / 1e9
        if self.watts > IDLE_WATTS:
            self.busy_ns += passed_ns
        self.charged_ns += passed_ns
        self.watts = watts


class SimGpus:
    """All GPUs of one engine, told to the simulated device source through its files.

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
        self._meter.draw(PREFILL_WATTS if prefill else DECODE_WATTS, now_ns)

    def rest(self, now_ns: int) -> None:
        """The step has ended."""
        self._meter.draw(IDLE_WATTS, now_ns)

    def write(self, now_ns: int) -> None:
        """Write the totals as of `now_ns`; raises `OSError`."""
        meter = self._meter
        meter.draw(meter.watts, now_ns)
        state = SimState(
            t_ns=now_ns,
            busy_ns=meter.busy_ns,
            memory_used_bytes=_MEMORY_USED_BYTES,
            power_watts=meter.watts,
            energy_joules=meter.energy_joules,
            pid=os.getpid(),
        )
        for index in self._indices:
            write_state(self._folder, index, state)

    def leave(self) -> None:
        """Take the files away: nobody uses these GPUs any more."""
        for index in self._indices:
            state_path(self._folder, index).unlink(missing_ok=True)
