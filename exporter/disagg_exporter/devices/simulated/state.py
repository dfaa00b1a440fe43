"""The file of one simulated device, as the demo's stand-in engine that serves it writes it.

A file, `<folder>/gpu-<index>`, holds one line of ASCII, fields parted by spaces, rewritten a few
times a second:

    disagg-sim-2 <pid> <t_ns> <busy_ns> <sm_ns> <tensor_ns> <dram_ns>
        <memory_used_bytes> <power_watts> <energy_joules>
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from disagg_exporter.errors import DisaggError

_FORMAT = "disagg-sim-2"


class SimStateError(DisaggError):
    """A file in the simulation's folder does not hold a state."""


@dataclass(frozen=True, slots=True)
class SimState:
    """What an engine process says of one device: totals since that process began.

    `t_ns` is CLOCK_MONOTONIC at the time of writing, `busy_ns` how long the device has been
    busy, `energy_joules` what it has used. `sm_ns`, `tensor_ns` and `dram_ns` are the activity of
    its parts, each as the time it would have taken at full activity.
    """

    t_ns: int
    busy_ns: int
    memory_used_bytes: int
    power_watts: float
    energy_joules: float
    pid: int
    sm_ns: int = 0
    tensor_ns: int = 0
    dram_ns: int = 0


def state_path(folder: Path, index: int) -> Path:
    """The file of one device."""
    return folder / f"gpu-{index}"


def write_state(folder: Path, index: int, state: SimState) -> None:
    """Replace a device's file by a new version; a reader sees the old one or the new one whole.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".gpu-{index}.{state.pid}"
    unfinished.write_text(
        f"{_FORMAT} {state.pid} {state.t_ns} {state.busy_ns} {state.sm_ns} {state.tensor_ns} "
        f"{state.dram_ns} {state.memory_used_bytes} {state.power_watts:.3f} "
        f"{state.energy_joules:.6f}\n",
        encoding="ascii",
    )
    unfinished.replace(state_path(folder, index))


def parse_state(text: str) -> SimState:
    """Read one version of a device's file.

    Raises:
        SimStateError: The text is something else.
    """
    try:
        version, pid, t_ns, busy_ns, *parts, memory, power, energy = text.split()
        if version != _FORMAT:
            raise SimStateError(f"a state of format {version!r}, not {_FORMAT!r}")
        sm_ns, tensor_ns, dram_ns = map(int, parts)
        return SimState(
            t_ns=int(t_ns),
            busy_ns=int(busy_ns),
            memory_used_bytes=int(memory),
            power_watts=float(power),
            energy_joules=float(energy),
            pid=int(pid),
            sm_ns=sm_ns,
            tensor_ns=tensor_ns,
            dram_ns=dram_ns,
        )
    except ValueError as error:
        raise SimStateError(f"not a device's state: {text[:80]!r}") from error
