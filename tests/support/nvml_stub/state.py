"""What the stub driver tells: the Python twin of the structures in stub.c, mapped to a file.

A field that a test sets is what the next call of a process under the stub is told.
"""

from __future__ import annotations

import mmap
from ctypes import Structure, c_uint32, c_uint64, sizeof
from pathlib import Path

MAX_GPUS = 8

UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION = 1, 3, 4
DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 9, 15, 999


def _words(*names: str) -> list[tuple[str, type[c_uint32]]]:
    return [(name, c_uint32) for name in names]


class Instance(Structure):
    """One MIG instance; a slot without slices is empty."""

    _fields_ = (
        *_words("slices", "gpu_instance", "compute_instance", "process"),
        ("gpm_busy_milliseconds", c_uint32 * 4),
        ("memory_total_bytes", c_uint64),
        ("memory_used_bytes", c_uint64),
    )


class Sample(Structure):
    """How much of the GPU a process used in the driver's sample of that time."""

    _fields_ = (("microseconds", c_uint64), *_words("pid", "sm_percent"))


class Gpu(Structure):
    """One GPU; the `*_error` fields are what calls return instead of success."""

    _fields_ = (
        *_words("open_error", "error", "utilization_error", "memory_error", "power_error"),
        *_words("energy_error", "clock_error", "processes_error", "throttle_error", "ecc_error"),
        *_words("gpm_error", "gpm_metric_error"),
        *_words("minor", "utilization_percent", "power_milliwatts", "sm_clock_megahertz"),
        ("memory_total_bytes", c_uint64),
        ("memory_used_bytes", c_uint64),
        ("energy_millijoules", c_uint64),
        ("process_count", c_uint32),
        ("processes", c_uint32 * 8),
        *_words("mig", "unused"),
        ("instances", Instance * 7),
        ("throttle_reasons", c_uint64),
        ("ecc_errors", c_uint64 * 2),
        *_words("gpm_supported", "gpm_milliseconds"),
        ("gpm_busy_milliseconds", c_uint32 * 4),
        *_words("events_error", "sample_count"),
        *_words("temperature_error", "field_error", "celsius", "memory_celsius"),
        *_words("limit_milliwatts", "limit_error"),
        ("link_mebibytes", c_uint64 * 4),
        ("samples", Sample * 8),
        ("process_memory_bytes", c_uint64 * 8),
    )

    def run(self, *pids: int, memory_bytes: tuple[int, ...] = ()) -> None:
        """Say that these processes compute on the GPU, and hold so much memory; 0 if not said."""
        self.process_count = len(pids)
        self.processes[: len(pids)] = pids
        self.process_memory_bytes[:] = (memory_bytes + (0,) * 8)[:8]

    def sample(self, *samples: tuple[int, int, int]) -> None:
        """Set the samples of processes: (time in microseconds, pid, percent of SM time) each."""
        self.sample_count = len(samples)
        for place, told in enumerate(samples):
            self.samples[place] = Sample(*told)

    def count(self, milliseconds: int, *busy: int, slot: int | None = None) -> None:
        """Let time pass on the performance counters: busy graphics, SM, tensor, DRAM in it."""
        self.gpm_milliseconds += milliseconds
        counters = self if slot is None else self.instances[slot]
        for part, passed in enumerate(busy):
            counters.gpm_busy_milliseconds[part] += passed

    def move(self, *mebibytes: int) -> None:
        """Let bytes pass: PCIe sent, received, NVLink sent, received."""
        for link, count in enumerate(mebibytes):
            self.link_mebibytes[link] += count


class Xid(Structure):
    """An error that waits to be reported; of a whole GPU the instance is all ones."""

    _fields_ = (*_words("gpu", "number", "gpu_instance"),)


class State(Structure):
    """The whole driver; the five numbers from `inits` on are counted by the stub.

    `gpm_samples` and `event_sets` are those that nobody has freed yet.
    """

    _fields_ = (
        *_words("init_error", "count_error", "gpu_count"),
        *_words("inits", "shutdowns", "process_calls", "gpm_samples"),
        *_words("event_sets", "xid_count"),
        ("xids", Xid * 8),
        ("gpus", Gpu * MAX_GPUS),
    )

    def report(self, gpu: int, *numbers: int, instance: int = 0xFFFFFFFF) -> None:
        """Let a GPU have these Xid errors, which wait until they are asked for."""
        for number in numbers:
            self.xids[self.xid_count] = Xid(gpu, number, instance)
            self.xid_count += 1


def set_defaults(state: State) -> None:
    """Eight healthy GPUs of 80 GiB at rest; the counts of the stub go on."""
    state.init_error = state.count_error = state.xid_count = 0
    state.gpu_count = MAX_GPUS
    for number in range(MAX_GPUS):
        state.gpus[number] = Gpu(
            minor=number,
            power_milliwatts=70_000,
            limit_milliwatts=700_000,
            celsius=31,
            sm_clock_megahertz=345,
            memory_total_bytes=80 * 1024**3,
            throttle_error=NOT_SUPPORTED,
            ecc_error=NOT_SUPPORTED,
            events_error=NOT_SUPPORTED,
        )


def new_state(path: Path) -> State:
    """A state of eight healthy GPUs in a new file at `path`, for NVML_STUB_STATE."""
    path.write_bytes(bytes(sizeof(State)))
    with path.open("r+b") as file:
        # Closed by nobody: it lives as long as a structure looks into it.
        state = State.from_buffer(mmap.mmap(file.fileno(), 0))
    set_defaults(state)
    return state
