"""The demo's simulated devices, read from small files that its stand-in engines write.

What the totals say between two versions of a file is the device's activity, as a driver's
counters would be. A device whose file is missing, or older than `STALE_NS`, is one that nobody
uses: it is at rest, which is known and not a failed reading: activity 0, no memory, idle power.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from disagg_exporter.devices.gpm import NOT_TOLD, PartRatios
from disagg_exporter.devices.simulated.state import SimState, SimStateError, parse_state, state_path
from disagg_exporter.model import Device, DeviceFailure, DeviceReading, DeviceSweep

STALE_NS = 3_000_000_000
"""A file older than this was left by an engine that is gone."""

HOLD_NS = 1_000_000_000
"""How long an activity is believed without a newer version of the file; then it is absent."""

IDLE_WATTS = 70.0
"""Power of a simulated device at rest."""

AT_REST = PartRatios(0.0, 0.0, 0.0, 0.0)
"""Activity of a device that nobody uses."""

MEMORY_TOTAL_BYTES = 80 * 1024**3
"""Memory of a simulated device."""


@dataclass(frozen=True, slots=True)
class SimTrack:
    """What is remembered of a device between sweeps.

    `energy_joules` is the device's own counter: it goes on when engines come and go. All time
    up to `charged_ns` is in it.
    """

    charged_ns: int
    energy_joules: float = 0.0
    state: SimState | None = None
    ratios: PartRatios = NOT_TOLD

    @property
    def busy_ratio(self) -> float | None:
        """Share of the time in which the device did anything; None where that is unknown."""
        return self.ratios.graphics_ratio


def follow(track: SimTrack, state: SimState | None, now_ns: int) -> SimTrack:
    """The track after one more look at a device's file (`state` is None where there is none).

    A process's first version tells where its totals begin; activity is absent until its second.
    """
    if state is None or abs(now_ns - state.t_ns) > STALE_NS:
        return _rested(track, now_ns, state=None, ratios=AT_REST)
    before = track.state
    if before is None or before.pid != state.pid or state.busy_ns < before.busy_ns:
        return _rested(track, state.t_ns, state=state, ratios=NOT_TOLD)
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
        count: How many devices there are.
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
        """Look at every file once; a file that cannot be read or understood is a failure."""
        readings: list[DeviceReading] = []
        failures: list[DeviceFailure] = []
        for device in self._devices:
            try:
                readings.append(self._read(device.gpu, now_ns))
            except (OSError, UnicodeDecodeError, SimStateError) as error:
                failures.append(DeviceFailure(device.gpu, f"{self._paths[device.gpu]}: {error}"))
        return DeviceSweep(now_ns, tuple(readings), tuple(failures))

    def close(self) -> None:
        """Nothing to let go of."""

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
            busy_ratio=track.busy_ratio,
            memory_used_bytes=used.memory_used_bytes if used else 0,
            memory_total_bytes=MEMORY_TOTAL_BYTES,
            power_watts=used.power_watts if used else IDLE_WATTS,
            energy_joules=track.energy_joules,
            pids=(used.pid,) if used else (),
            graphics_ratio=track.ratios.graphics_ratio,
            sm_ratio=track.ratios.sm_ratio,
            tensor_ratio=track.ratios.tensor_ratio,
            dram_ratio=track.ratios.dram_ratio,
            # Nothing ever holds its clocks back.
            throttles=(),
        )
