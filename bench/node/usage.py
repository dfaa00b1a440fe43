"""What a process has used, as the kernel counts it. Seconds of CPU, bytes of memory."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads and those that have ended; without children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def thread_cpu_seconds(pid: int, thread: int) -> float:
    """CPU time of one thread, to the nanosecond."""
    told = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
    return int(told.split()[0]) / 1e9


def threads(pid: int) -> frozenset[int]:
    """The threads of a process."""
    return frozenset(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory left")


def slope(points: list[tuple[float, float]]) -> float:
    """The slope of the straight line nearest to the points (least squares)."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
