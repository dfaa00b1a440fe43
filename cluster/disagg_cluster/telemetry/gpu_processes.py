"""Attributes the processes on a GPU: each engine's share of it, and the work of no engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from disagg_exporter.model import (
    DeviceReading,
    EngineState,
    EngineStatus,
    ForeignWork,
    GpuShare,
)

Parents = Callable[[int], Iterable[int]]
"""The ancestors of a process, nearest first."""


class KnownParents:
    """The ancestors of GPU processes as they were when each was first observed.

    Nothing is read twice, and a process that has just ended, or whose parent has, keeps its owner.
    """

    def __init__(self, read: Parents) -> None:
        self._read = read
        self._known: dict[int, tuple[int, ...]] = {}

    def prune(self, readings: Iterable[DeviceReading]) -> None:
        """Forget the processes that are no longer on any GPU."""
        pids = {pid for reading in readings for pid, _ in reading.process_memory or ()}
        for pid in self._known.keys() - pids:
            del self._known[pid]

    def __call__(self, pid: int) -> tuple[int, ...]:
        """Return a process's ancestors."""
        known = self._known.get(pid)
        if known is None:
            known = self._known[pid] = tuple(self._read(pid))
        return known


def shares(
    engines: Sequence[EngineStatus], readings: Iterable[DeviceReading], parents: Parents
) -> tuple[GpuShare, ...]:
    """Return each engine's share of each GPU that it shares; none for GPUs it has to itself.

    A process belongs to an engine if it is the engine's leader or a descendant of it. Processes are
    known by pid, so an engine whose pids are not visible here has no share, rather than 0.
    """
    sharers = Counter(gpu for engine in engines if engine.pid for gpu in engine.devices)
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for reading in readings:
        if sharers[reading.gpu] < 2 or not reading.process_ratios:
            continue
        leaders = _leaders(engines, reading.gpu)
        for pid, ratio in reading.process_ratios:
            engine = _owner(pid, leaders, parents)
            if engine is not None:
                found[engine, reading.gpu] += ratio
    return tuple(GpuShare(*key, min(ratio, 1.0)) for key, ratio in found.items())


def foreign_work(
    engines: Sequence[EngineStatus], readings: Iterable[DeviceReading], parents: Parents
) -> tuple[ForeignWork, ...]:
    """Return the work of no engine on each GPU where it can be determined.

    It cannot where the processes are not listed, nor where a ready engine has no process among
    them: its pids are then of another namespace, and it would count as foreign work itself.
    """
    return tuple(
        found for reading in readings if (found := _foreign(engines, reading, parents)) is not None
    )


def _foreign(
    engines: Sequence[EngineStatus], reading: DeviceReading, parents: Parents
) -> ForeignWork | None:
    if reading.process_memory is None:
        return None
    ready = {e.engine for e in engines if reading.gpu in e.devices and e.state is EngineState.READY}
    leaders = _leaders(engines, reading.gpu)
    memory_bytes: list[int | None] = []
    for pid, used_bytes in reading.process_memory:
        engine = _owner(pid, leaders, parents)
        if engine is None:
            memory_bytes.append(used_bytes)
        ready.discard(engine or "")
    if ready:
        return None
    if not memory_bytes:
        return ForeignWork(reading.gpu, 0.0, 0)
    told_bytes = [each for each in memory_bytes if each is not None]
    sm_ratio = None
    if reading.process_ratios is not None:
        foreign = (
            ratio for pid, ratio in reading.process_ratios if _owner(pid, leaders, parents) is None
        )
        sm_ratio = min(sum(foreign), 1.0)
    all_told = len(told_bytes) == len(memory_bytes)
    return ForeignWork(reading.gpu, sm_ratio, sum(told_bytes) if all_told else None)


def _leaders(engines: Iterable[EngineStatus], gpu: str) -> dict[int, str]:
    return {each.pid: each.engine for each in engines if each.pid and gpu in each.devices}


def _owner(pid: int, leaders: dict[int, str], parents: Parents) -> str | None:
    above = (leaders.get(each) for each in (pid, *parents(pid)))
    return next((name for name in above if name), None)
