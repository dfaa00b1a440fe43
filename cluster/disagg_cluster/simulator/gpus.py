"""Stand-in GPUs: a driver's readings of the GPUs of a simulated engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from disagg_cluster.simulator.engine.hardware import Gpu
from disagg_cluster.simulator.engine.roofline import Price
from disagg_exporter.devices.simulated import celsius
from disagg_exporter.model import (
    SECOND_NS,
    Device,
    DeviceReading,
    Direction,
    LinkKind,
    LinkTraffic,
    Throttle,
)

# Power of a busy GPU over its limit, and the additions of arithmetic and memory at their peaks:
# least squares over the BF16 matrix products and the decode attention that NVIDIA measured with
# watts on a B200 (aiconfigurator, b200-vllm-0.24.0-power, Apache-2.0; 18,992 kernels of more than
# 20 us). Median errors by kind are below 5 points, single kernels deviate by 13 to 20. Other GPUs
# are assumed to divide their limit the same way.
_WORKING_POWER_RATIO = 0.25
_COMPUTE_POWER_RATIO = 0.87
_MEMORY_POWER_RATIO = 0.42


# A GPU reports that its power limit lowers the clock if its mean power is this part of the limit:
# an H200 at 597 W and more under chats did (of 700), at 566 W and less it did not (our
# measurement, tests/data/vllm-0.26.0-h200). That its clock is a few percent lower is left out.
_AT_LIMIT_RATIO = 0.85


def watts(gpu: Gpu, price: Price) -> float:
    """Return a GPU's power during a step of this price: more for prefill, which computes more."""
    ratio = (
        _WORKING_POWER_RATIO
        + _COMPUTE_POWER_RATIO * price.compute_ratio
        + _MEMORY_POWER_RATIO * price.memory_ratio
    )
    return gpu.max_watts * min(1.0, ratio)


def device(gpu: Gpu, uuid: str, index: int) -> Device:
    """Return the stand-in GPU as its node lists it."""
    return Device(
        gpu=uuid,
        index=index,
        gpu_name=gpu.name,
        device=f"sim{index}",
        memory_total_bytes=gpu.memory_bytes,
    )


class _Done(NamedTuple):
    """Running totals of the work of a group's GPUs, without idle time.

    `tensor_ns` and `dram_ns` weight the busy time with the utilization of either peak; a GPU at a
    lower clock computes for a larger part of that time than those that wait for it.
    """

    busy_ns: int = 0
    tensor_ns: float = 0.0
    dram_ns: float = 0.0
    joules: float = 0.0

    def plus(self, busy_ns: int, price: Price, extra_watts: float, clock_ratio: float) -> _Done:
        """Return the totals after steps of this price on a GPU at this part of its clock."""
        return _Done(
            self.busy_ns + busy_ns,
            self.tensor_ns + busy_ns * min(1.0, price.compute_ratio / clock_ratio),
            self.dram_ns + busy_ns * price.memory_ratio,
            self.joules + busy_ns * extra_watts / SECOND_NS,
        )


_NOTHING_DONE = _Done()


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A foreign process on a GPU: its share of the SMs' time, and its memory."""

    pid: int
    sm_ratio: float
    memory_bytes: int


@dataclass(slots=True)
class _GroupedGpu:
    """One GPU of a group: its totals, now and at its last reading, and its faults."""

    uuid: str
    done: _Done
    seen: _Done
    clock_ratio: float = 1.0
    throttle: Throttle = Throttle.THERMAL
    foreign: ForeignProcess | None = None
    ecc_corrected_errors: int = 0


class GpuGroup:
    """The GPUs of one engine. They work in step: all are busy as long as the slowest computes.

    `memory_used_bytes` and `pids` are those of the engine's current process; everything else
    persists from one process to the next.
    """

    def __init__(self, gpu: Gpu, uuids: Sequence[str], now_ns: int) -> None:
        self.memory_used_bytes = 0
        self.pids: tuple[int, ...] = ()
        self.busy_ns = 0
        self._gpu = gpu
        self._start_ns = now_ns
        self._seen_ns = now_ns
        self._gpus = {uuid: _GroupedGpu(uuid, _NOTHING_DONE, _NOTHING_DONE) for uuid in uuids}
        self._moved_bytes = dict.fromkeys(Direction, 0)

    @property
    def clock_ratio(self) -> float:
        """The clock of the slowest: the others wait for it."""
        return min(each.clock_ratio for each in self._gpus.values())

    @property
    def free_ratio(self) -> float:
        """The share of the SMs' time that foreign processes leave, where they take the most."""
        processes = (each.foreign for each in self._gpus.values())
        return 1 - max((each.sm_ratio for each in processes if each is not None), default=0.0)

    def throttle(self, uuid: str, clock_ratio: float, reason: Throttle = Throttle.THERMAL) -> None:
        """Run one GPU at this part of its clock; 1 ends it."""
        self._gpus[uuid].clock_ratio = clock_ratio
        self._gpus[uuid].throttle = reason

    def share(self, uuid: str, foreign: ForeignProcess | None) -> None:
        """Put a foreign process on one GPU; None ends it."""
        self._gpus[uuid].foreign = foreign

    def correct(self, uuid: str, errors: int) -> None:
        """Add corrected memory errors to one GPU."""
        self._gpus[uuid].ecc_corrected_errors += errors

    def move(self, direction: Direction, size_bytes: int) -> None:
        """Send or receive KV, each GPU its part; it goes to the network over PCIe."""
        self._moved_bytes[direction] += size_bytes

    def work(self, busy_ns: int, price: Price) -> None:
        """Add steps that have ended."""
        self.busy_ns += busy_ns
        before, clock_ratio, after = None, 1.0, _NOTHING_DONE
        for each in self._gpus.values():
            # GPUs that were always alike share their totals.
            if each.done is not before or each.clock_ratio != clock_ratio:
                before, clock_ratio = each.done, each.clock_ratio
                after = self._after(each, busy_ns, price)
            each.done = after

    def read(self, now_ns: int, under_way_ns: int, price: Price) -> list[DeviceReading]:
        """Return the driver's readings now; `under_way_ns` of work at `price` is not added yet.

        Activity and power are the means since the last reading.
        """
        passed_ns, self._seen_ns = now_ns - self._seen_ns, now_ns
        readings = []
        for each in self._gpus.values():
            done, seen = each.done, each.seen
            if under_way_ns:
                done = self._after(each, under_way_ns, price)
            each.seen = done
            if passed_ns:
                readings.append(self._reading(each, seen, done, now_ns, passed_ns))
        return readings

    def _reading(
        self, each: _GroupedGpu, seen: _Done, done: _Done, now_ns: int, passed_ns: int
    ) -> DeviceReading:
        own_ratio = min(1.0, (done.busy_ns - seen.busy_ns) / passed_ns)
        foreign = each.foreign or _NOBODY
        busy_ratio = own_ratio + (1 - own_ratio) * foreign.sm_ratio
        idle_watts = self._gpu.idle_watts
        drawn_watts = idle_watts + (done.joules - seen.joules) * SECOND_NS / passed_ns
        is_throttled = each.clock_ratio < 1
        is_hot = is_throttled and each.throttle is Throttle.THERMAL
        is_capped = is_throttled and each.throttle is Throttle.POWER_CAP
        gpus = len(self._gpus)
        return DeviceReading(
            gpu=each.uuid,
            t_ns=now_ns,
            busy_ratio=busy_ratio,
            memory_used_bytes=min(
                self.memory_used_bytes + foreign.memory_bytes, self._gpu.memory_bytes
            ),
            memory_total_bytes=self._gpu.memory_bytes,
            power_watts=drawn_watts,
            energy_joules=idle_watts * (now_ns - self._start_ns) / SECOND_NS + done.joules,
            sm_clock_hertz=self._clock_hertz(each.clock_ratio, busy=busy_ratio > 0),
            pids=self.pids if each.foreign is None else (*self.pids, foreign.pid),
            graphics_ratio=busy_ratio,
            sm_ratio=busy_ratio,
            tensor_ratio=min(1.0, (done.tensor_ns - seen.tensor_ns) / passed_ns),
            dram_ratio=min(1.0, (done.dram_ns - seen.dram_ns) / passed_ns),
            throttles=_throttles(each, drawn_watts / self._gpu.max_watts),
            process_ratios=self._process_ratios(own_ratio, each.foreign),
            process_memory=(
                *((pid, self.memory_used_bytes) for pid in self.pids),
                *(() if each.foreign is None else ((foreign.pid, foreign.memory_bytes),)),
            ),
            ecc_corrected_errors=each.ecc_corrected_errors,
            temperature_celsius=max(celsius(drawn_watts), _HOT_CELSIUS if is_hot else 0.0),
            power_limit_watts=self._gpu.max_watts * (each.clock_ratio if is_capped else 1.0),
            traffic=tuple(
                LinkTraffic(LinkKind.PCIE, direction, size_bytes / gpus)
                for direction, size_bytes in self._moved_bytes.items()
            ),
        )

    def _process_ratios(
        self, own_ratio: float, foreign: ForeignProcess | None
    ) -> tuple[tuple[int, float], ...]:
        """Return each process's share of SM time: foreign ones take theirs from the engine."""
        taken_ratio = 0.0 if foreign is None else foreign.sm_ratio
        own = tuple((pid, own_ratio * (1 - taken_ratio)) for pid in self.pids[:1])
        return own if foreign is None else (*own, (foreign.pid, taken_ratio))

    def _after(self, each: _GroupedGpu, busy_ns: int, price: Price) -> _Done:
        """Return the totals of one GPU after steps of this price."""
        clock_ratio = each.clock_ratio
        # Power decreases at least in proportion to the clock.
        extra_watts = (watts(self._gpu, price) - self._gpu.idle_watts) * clock_ratio
        return each.done.plus(busy_ns, price, extra_watts, clock_ratio)

    def _clock_hertz(self, clock_ratio: float, *, busy: bool) -> float:
        return self._gpu.max_clock_hertz * clock_ratio if busy else self._gpu.idle_clock_hertz


def _throttles(each: _GroupedGpu, power_ratio: float) -> tuple[Throttle, ...]:
    if each.clock_ratio < 1:
        return (each.throttle,)
    return (Throttle.POWER_CAP,) if power_ratio >= _AT_LIMIT_RATIO else ()


_HOT_CELSIUS = 88.0
_NOBODY = ForeignProcess(0, 0.0, 0)
