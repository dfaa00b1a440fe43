"""The demo's simulated devices, read from small files that its stand-in engines write.

Such a file, `<folder>/gpu-<index>`, holds one line of ASCII, fields separated by spaces, rewritten
a few times a second:

    disagg-sim-2 <pid> <t_ns> <busy_ns> <sm_ns> <tensor_ns> <dram_ns>
        <memory_used_bytes> <power_watts> <energy_joules>

The device's activity is the difference of the totals between two versions of a file, like a
driver's counters. A device whose file is missing, or older than `STALE_NS`, has no process: it is
idle, which is a known state and not a failed reading: activity 0, no memory, idle power.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from disagg_exporter.devices.gpm import NOT_REPORTED, PartRatios
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Device, DeviceFailure, DeviceReading, DeviceSweep

_FORMAT = "disagg-sim-2"


class SimStateError(DisaggError):
    """A file in the simulation's folder does not hold a state."""


@dataclass(frozen=True, slots=True)
class SimState:
    """What an engine process reports of one device: totals since that process began.

    `t_ns` is CLOCK_MONOTONIC at the time of writing, `busy_ns` how long the device has been busy,
    `energy_joules` what it has used. `sm_ns`, `tensor_ns` and `dram_ns` are the activity of its
    parts, each as the time it would have taken at full activity.
    """

    pid: int
    t_ns: int
    busy_ns: int
    sm_ns: int
    tensor_ns: int
    dram_ns: int
    memory_used_bytes: int
    power_watts: float
    energy_joules: float


_FIELD_TYPES = (*(int,) * 7, *(float,) * 2)


def state_path(folder: Path, index: int) -> Path:
    """Return the path of one device's file."""
    return folder / f"gpu-{index}"


def write_state(folder: Path, index: int, state: SimState) -> None:
    """Replace a device's file by a new version; a reader sees either the old or the new one whole.

    Raises:
        OSError: The folder cannot be created or written.
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
    """Parse one version of a device's file.

    Raises:
        SimStateError: The text is not a state.
    """
    try:
        version, *fields = text.split()
        state = SimState(*(kind(one) for kind, one in zip(_FIELD_TYPES, fields, strict=True)))
    except ValueError as error:
        raise SimStateError(f"not a device's state: {text[:80]!r}") from error
    if version != _FORMAT:
        raise SimStateError(f"a state of format {version!r}, not {_FORMAT!r}")
    return state


STALE_NS = 3_000_000_000
"""A file older than this was left by an engine that is gone."""

HOLD_NS = 1_000_000_000
"""How long an activity stays valid without a newer version of the file; then it is absent."""

IDLE_WATTS = 70.0
"""Power of an idle simulated device."""

_COOLANT_CELSIUS, _CELSIUS_PER_WATT = 27.0, 0.06


def celsius(watts: float) -> float:
    """Return the temperature of a simulated GPU at a power: chosen, 31 idle and 69 at 700 W."""
    return _COOLANT_CELSIUS + _CELSIUS_PER_WATT * watts


AT_REST = PartRatios(0.0, 0.0, 0.0, 0.0)
"""Activity of a device without a process."""

MEMORY_TOTAL_BYTES = 80 * 1024**3
"""Memory of a simulated device."""


@dataclass(frozen=True, slots=True)
class SimTrack:
    """State of a device that is kept between sweeps.

    `energy_joules` is the device's own counter: it continues when engines come and go. It includes
    all time up to `charged_ns`.
    """

    charged_ns: int
    energy_joules: float = 0.0
    state: SimState | None = None
    ratios: PartRatios = NOT_REPORTED


def follow(track: SimTrack, state: SimState | None, now_ns: int) -> SimTrack:
    """Return the state after one more reading of a device's file (`state` is None without a file).

    A process's first version shows where its totals begin; activity is absent until its second.
    """
    if state is None or abs(now_ns - state.t_ns) > STALE_NS:
        return _rested(track, now_ns, state=None, ratios=AT_REST)
    before = track.state
    if before is None or before.pid != state.pid or state.busy_ns < before.busy_ns:
        return _rested(track, state.t_ns, state=state, ratios=NOT_REPORTED)
    if state.t_ns <= before.t_ns:
        if now_ns - before.t_ns <= HOLD_NS:
            return track
        return SimTrack(track.charged_ns, track.energy_joules, before)
    passed_ns = state.t_ns - before.t_ns
    active_ns = (
        state.busy_ns - before.busy_ns,
        state.sm_ns - before.sm_ns,
        state.tensor_ns - before.tensor_ns,
        state.dram_ns - before.dram_ns,
    )
    return SimTrack(
        charged_ns=state.t_ns,
        energy_joules=track.energy_joules + max(0.0, state.energy_joules - before.energy_joules),
        state=state,
        ratios=PartRatios(*(min(max(ns / passed_ns, 0.0), 1.0) for ns in active_ns)),
    )


def _rested(
    track: SimTrack, until_ns: int, *, state: SimState | None, ratios: PartRatios
) -> SimTrack:
    seconds = max(0, until_ns - track.charged_ns) / 1e9
    return SimTrack(
        charged_ns=max(track.charged_ns, until_ns),
        energy_joules=track.energy_joules + IDLE_WATTS * seconds,
        state=state,
        ratios=ratios,
    )


class SimDevices:
    """Simulated devices `sim0`, `sim1` …, each read from its file.

    Args:
        folder: Where the stand-in engines write; it need not exist yet.
        count: Number of devices.
    """

    name = "sim"

    def __init__(self, folder: Path, count: int) -> None:
        self._devices = tuple(
            Device(
                gpu=f"GPU-sim-{index:04d}",
                index=index,
                gpu_name="Simulated GPU",
                device=f"sim{index}",
                memory_total_bytes=MEMORY_TOTAL_BYTES,
            )
            for index in range(count)
        )
        self._paths = {device.gpu: state_path(folder, device.index) for device in self._devices}
        self._tracks: dict[str, SimTrack] = {}

    def inventory(self) -> tuple[Device, ...]:
        """The simulated devices."""
        return self._devices

    def sweep(self, now_ns: int) -> DeviceSweep:
        """Read every file once; a file that cannot be read or parsed is a failure."""
        readings: list[DeviceReading] = []
        failures: list[DeviceFailure] = []
        for device in self._devices:
            try:
                readings.append(self._read(device.gpu, now_ns))
            except (OSError, UnicodeDecodeError, SimStateError) as error:
                failures.append(DeviceFailure(device.gpu, f"{self._paths[device.gpu]}: {error}"))
        return DeviceSweep(now_ns, tuple(readings), tuple(failures))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _read(self, gpu: str, now_ns: int) -> DeviceReading:
        try:
            state = parse_state(self._paths[gpu].read_text(encoding="ascii"))
        except FileNotFoundError:
            state = None
        track = follow(self._tracks.get(gpu, SimTrack(charged_ns=now_ns)), state, now_ns)
        self._tracks[gpu] = track
        used = track.state
        return DeviceReading(
            gpu=gpu,
            t_ns=now_ns,
            busy_ratio=track.ratios.graphics_ratio,
            memory_used_bytes=used.memory_used_bytes if used else 0,
            memory_total_bytes=MEMORY_TOTAL_BYTES,
            power_watts=used.power_watts if used else IDLE_WATTS,
            energy_joules=track.energy_joules,
            pids=(used.pid,) if used else (),
            process_memory=((used.pid, used.memory_used_bytes),) if used else (),
            **track.ratios._asdict(),
            # Nothing ever throttles it.
            throttles=(),
            temperature_celsius=celsius(used.power_watts if used else IDLE_WATTS),
        )
