"""Stand-in GPUs: what a driver would say of the GPUs on which a simulated engine works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from disagg_cluster.simulator.engine.hardware import Gpu
from disagg_cluster.simulator.engine.roofline import Price
from disagg_exporter.devices.simulated import celsius
from disagg_exporter.model import (
    Device,
    DeviceReading,
    Direction,
    LinkKind,
    LinkTraffic,
    Throttle,
)

_NS = 1_000_000_000

# Power over its limit of a GPU that works, and what arithmetic and memory at their peaks add:
# least squares over the BF16 matrix products and the decode attention that NVIDIA measured with
# watts on a B200 (aiconfigurator, b200-vllm-0.24.0-power, Apache-2.0; 18,992 kernels of more than
# 20 us). Median errors by kind are below 5 points, single kernels stray by 13 to 20. Other GPUs
# are taken to share their limit the same way.
_WORKING_POWER_RATIO = 0.25
_COMPUTE_POWER_RATIO = 0.87
_MEMORY_POWER_RATIO = 0.42


def watts(gpu: Gpu, price: Price) -> float:
    """Power of a GPU during a step of this price: more for prefill, which computes more."""
    ratio = (
        _WORKING_POWER_RATIO
        + _COMPUTE_POWER_RATIO * price.compute_ratio
        + _MEMORY_POWER_RATIO * price.memory_ratio
    )
    return gpu.max_watts * min(1.0, ratio)


def device(gpu: Gpu, uuid: str, index: int) -> Device:
    """The stand-in GPU as its node lists it."""
    return Device(
        gpu=uuid,
        index=index,
        gpu_name=gpu.name,
        device=f"sim{index}",
        memory_total_bytes=gpu.memory_bytes,
    )


class _Done(NamedTuple):
    """Running totals of what the GPUs of a group have done; time in which they only rest left out.

    `tensor_ns` and `dram_ns` weigh the busy time with the use made of either peak.
    """

    busy_ns: int = 0
    tensor_ns: float = 0.0
    dram_ns: float = 0.0
    joules: float = 0.0

    def plus(self, busy_ns: int, price: Price, extra_watts: float) -> _Done:
        """The totals after steps of this price."""
        return _Done(
            self.busy_ns + busy_ns,
            self.tensor_ns + busy_ns * price.compute_ratio,
            self.dram_ns + busy_ns * price.memory_ratio,
            self.joules + busy_ns * extra_watts / _NS,
        )


class GpuGroup:
    """The GPUs of one engine. They work in step, so all of them do the same.

    `memory_used_bytes` and `pids` are those of the engine's process now; all else goes on from
    one process to the next.
    """

    def __init__(self, gpu: Gpu, uuids: Sequence[str], now_ns: int) -> None:
        self.memory_used_bytes = 0
        self.pids: tuple[int, ...] = ()
        self._gpu = gpu
        self._start_ns = now_ns
        self._done = self._seen = _Done()
        self._seen_ns = now_ns
        self._clock_ratios = dict.fromkeys(uuids, 1.0)
        self._moved_bytes = dict.fromkeys(Direction, 0)

    @property
    def busy_ns(self) -> int:
        """How long the GPUs have worked."""
        return self._done.busy_ns

    @property
    def clock_ratio(self) -> float:
        """The clock of the slowest: the others wait for it."""
        return min(self._clock_ratios.values())

    def throttle(self, uuid: str, clock_ratio: float) -> None:
        """Let one GPU run at this part of its clock; 1 ends it."""
        self._clock_ratios[uuid] = clock_ratio

    def move(self, direction: Direction, size_bytes: int) -> None:
        """Send or receive KV, each GPU its part; it goes to the network by PCIe."""
        self._moved_bytes[direction] += size_bytes

    def work(self, busy_ns: int, price: Price) -> None:
        """Charge steps that have ended."""
        self._done = self._done.plus(busy_ns, price, self._extra_watts(price))

    def read(self, now_ns: int, under_way_ns: int, price: Price) -> list[DeviceReading]:
        """What the driver says now, `under_way_ns` of work at `price` not being charged yet.

        Activity and power are the means since the last reading.
        """
        done = self._done
        if under_way_ns:
            done = done.plus(under_way_ns, price, self._extra_watts(price))
        seen, passed_ns = self._seen, now_ns - self._seen_ns
        self._seen, self._seen_ns = done, now_ns
        if not passed_ns:
            return []
        busy_ratio = min(1.0, (done.busy_ns - seen.busy_ns) / passed_ns)
        idle_watts = self._gpu.idle_watts
        gpus = len(self._clock_ratios)
        traffic = tuple(
            LinkTraffic(LinkKind.PCIE, direction, size_bytes / gpus)
            for direction, size_bytes in self._moved_bytes.items()
        )
        drawn_watts = idle_watts + (done.joules - seen.joules) * _NS / passed_ns
        return [
            DeviceReading(
                gpu=uuid,
                t_ns=now_ns,
                busy_ratio=busy_ratio,
                memory_used_bytes=self.memory_used_bytes,
                memory_total_bytes=self._gpu.memory_bytes,
                power_watts=drawn_watts,
                energy_joules=idle_watts * (now_ns - self._start_ns) / _NS + done.joules,
                sm_clock_hertz=self._clock_hertz(clock_ratio, busy=busy_ratio > 0),
                pids=self.pids,
                process_ratios=tuple((pid, busy_ratio) for pid in self.pids),
                process_memory=tuple((pid, self.memory_used_bytes) for pid in self.pids),
                graphics_ratio=busy_ratio,
                sm_ratio=busy_ratio,
                tensor_ratio=min(1.0, (done.tensor_ns - seen.tensor_ns) / passed_ns),
                dram_ratio=min(1.0, (done.dram_ns - seen.dram_ns) / passed_ns),
                throttles=(Throttle.THERMAL,) if clock_ratio < 1 else (),
                temperature_celsius=celsius(drawn_watts),
                power_limit_watts=self._gpu.max_watts,
                traffic=traffic,
            )
            for uuid, clock_ratio in self._clock_ratios.items()
        ]

    def _extra_watts(self, price: Price) -> float:
        # Power falls with the clock at least in proportion.
        return (watts(self._gpu, price) - self._gpu.idle_watts) * self.clock_ratio

    def _clock_hertz(self, clock_ratio: float, *, busy: bool) -> float:
        return self._gpu.max_clock_hertz * clock_ratio if busy else self._gpu.idle_clock_hertz
