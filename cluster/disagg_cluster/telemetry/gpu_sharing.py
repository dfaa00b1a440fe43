"""How much of a shared GPU each of its engines uses, as the driver samples their processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from disagg_exporter.model import DeviceReading, EngineStatus, GpuShare

Parents = Callable[[int], Iterable[int]]
"""The parent of a process, its parent, and so on."""


def shares(
    engines: Sequence[EngineStatus], readings: Iterable[DeviceReading], parents: Parents
) -> tuple[GpuShare, ...]:
    """Return each engine's share of each GPU that it shares; none of those it has to itself.

    A process is an engine's if it is the engine's leader or below it. Processes are told by pid,
    so an engine whose pids cannot be seen from here has no share, and none is 0.
    """
    sharers = Counter(gpu for engine in engines if engine.pid for gpu in engine.devices)
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for reading in readings:
        if sharers[reading.gpu] < 2 or not reading.process_ratios:
            continue
        leaders = {e.pid: e.engine for e in engines if e.pid and reading.gpu in e.devices}
        for pid, ratio in reading.process_ratios:
            above = (leaders.get(each) for each in (pid, *parents(pid)))
            engine = next((name for name in above if name), None)
            if engine is not None:
                found[engine, reading.gpu] += ratio
    return tuple(GpuShare(*key, min(ratio, 1.0)) for key, ratio in found.items())
