"""What a process has used by the kernel's account: seconds of CPU, bytes of memory."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, ended threads included, children not."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def thread_cpu_seconds(pid: int, thread: int) -> float:
    """Return the CPU time of one thread, to the nanosecond."""
    stat = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
    return int(stat.split()[0]) / 1e9


def threads(pid: int) -> frozenset[int]:
    """Return the threads of a process."""
    return frozenset(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory left")


def slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through the points."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
