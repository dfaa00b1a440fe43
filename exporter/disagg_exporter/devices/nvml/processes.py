"""Which process used a GPU how much: the driver's own samples, by process.

The binding is an argument here (`nvml`, the module pynvml), so that one room alone imports it.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

_MOST_PERCENT = 100


class ProcessMeter:
    """The samples of one GPU since the last look; MIG instances have none."""

    __slots__ = ("_seen_us",)

    def __init__(self) -> None:
        self._seen_us = 0

    def read(self, nvml: Any, handle: Any) -> tuple[tuple[int, float], ...] | None:
        """(pid, mean share of SM time) of each process sampled since; None where none was told.

        The first look tells where samples begin: the driver has kept some of long ago.
        """
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us)
        except nvml.NVMLError:
            return None
        first, self._seen_us = (
            not self._seen_us,
            max((sample.timeStamp for sample in samples), default=self._seen_us),
        )
        if first:
            return None
        percents: defaultdict[int, list[int]] = defaultdict(list)
        for sample in samples:
            # Drivers tell numbers beyond 100 of processes that have just ended.
            if sample.pid and sample.smUtil <= _MOST_PERCENT:
                percents[sample.pid].append(sample.smUtil)
        return tuple((pid, fmean(told) / 100) for pid, told in sorted(percents.items()))
