"""Stand-in GPUs: what a driver would say of the GPUs on which a simulated engine works."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_cluster.sim.hardware import Gpu
from disagg_cluster.sim.roofline import Price
from disagg_exporter.model import Device, DeviceReading

_NS = 1_000_000_000

# Shares of the range between idle and maximal power that busy arithmetic units and a busy memory
# draw: with them prefill of a large model comes near the limit and decode to some six tenths,
# as operators report of H100s (Patel et al., POLCA, ASPLOS 2024, for the shape).
_COMPUTE_POWER_SHARE = 0.8
_MEMORY_POWER_SHARE = 0.6


def watts(gpu: Gpu, price: Price) -> float:
    """Power of a GPU during a step of this price."""
    share = _COMPUTE_POWER_SHARE * price.compute_ratio + _MEMORY_POWER_SHARE * price.memory_ratio
    return gpu.idle_watts + (gpu.max_watts - gpu.idle_watts) * min(1.0, share)


def device(gpu: Gpu, uuid: str, index: int) -> Device:
    """The stand-in GPU as its node lists it."""
    return Device(
        gpu=uuid,
        index=index,
        gpu_name=gpu.name,
        device=f"sim{index}",
        memory_total_bytes=gpu.memory_bytes,
    )


class GpuGroup:
    """The GPUs of one engine. They work in step, so all of them do the same.

    `busy_ns` and `energy_joules` count from the start and outlive the engine's processes.
    `memory_used_bytes` and `pids` are those of the process now.
    """

    def __init__(self, gpu: Gpu, uuids: Sequence[str], now_ns: int) -> None:
        self.memory_used_bytes = 0
        self.pids: tuple[int, ...] = ()
        self.busy_ns = 0
        self._gpu = gpu
        self._start_ns = now_ns
        self._extra_joules = 0.0
        self._clock_ratios = dict.fromkeys(uuids, 1.0)
        self._last = (now_ns, 0, 0.0)

    @property
    def clock_ratio(self) -> float:
        """The clock of the slowest: the others wait for it."""
        return min(self._clock_ratios.values())

    def throttle(self, uuid: str, clock_ratio: float) -> None:
        """Let one GPU run at this part of its clock; 1 ends it."""
        self._clock_ratios[uuid] = clock_ratio

    def work(self, busy_ns: int, price: Price) -> None:
        """Charge steps that have ended."""
        self.busy_ns += busy_ns
        self._extra_joules += self._extra_watts(price) * busy_ns / _NS

    def read(self, now_ns: int, under_way_ns: int, price: Price) -> list[DeviceReading]:
        """What the driver says now, `under_way_ns` of work at `price` not being charged yet.

        Activity and power are the means since the last reading; at the first there are none.
        """
        busy_ns = self.busy_ns + under_way_ns
        joules = (
            self._gpu.idle_watts * (now_ns - self._start_ns)
            + self._extra_watts(price) * under_way_ns
        ) / _NS + self._extra_joules
        last_ns, last_busy_ns, last_joules = self._last
        self._last = (now_ns, busy_ns, joules)
        passed_ns = now_ns - last_ns
        busy_ratio = min(1.0, (busy_ns - last_busy_ns) / passed_ns) if passed_ns else None
        power_watts = (joules - last_joules) * _NS / passed_ns if passed_ns else None
        return [
            DeviceReading(
                gpu=uuid,
                t_ns=now_ns,
                busy_ratio=busy_ratio,
                memory_used_bytes=self.memory_used_bytes,
                memory_total_bytes=self._gpu.memory_bytes,
                power_watts=power_watts,
                energy_joules=joules,
                sm_clock_hertz=self._clock_hertz(clock_ratio, busy=bool(busy_ratio)),
                pids=self.pids,
            )
            for uuid, clock_ratio in self._clock_ratios.items()
        ]

    def _extra_watts(self, price: Price) -> float:
        # Power falls with the clock at least in proportion.
        return (watts(self._gpu, price) - self._gpu.idle_watts) * self.clock_ratio

    def _clock_hertz(self, clock_ratio: float, *, busy: bool) -> float:
        return self._gpu.max_clock_hertz * clock_ratio if busy else self._gpu.idle_clock_hertz
