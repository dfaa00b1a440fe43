"""How active the parts of devices have been lately: means over their latest readings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from disagg_exporter.model import DeviceReading

_MEMORY = 20


@dataclass(frozen=True, slots=True)
class Parts:
    """Activity (0 to 1) of tensor cores and memory; None where no device tells it."""

    tensor_ratio: float | None = None
    dram_ratio: float | None = None


class Activity:
    """Means that fade: of twenty readings, one a second, the oldest counts a third."""

    def __init__(self) -> None:
        self._known: dict[str, Parts] = {}

    def take(self, readings: Iterable[DeviceReading]) -> None:
        """Take one reading of each device; one that is missing is forgotten."""
        self._known = {
            reading.gpu: Parts(
                _faded(before.tensor_ratio, reading.tensor_ratio),
                _faded(before.dram_ratio, reading.dram_ratio),
            )
            for reading in readings
            for before in (self._known.get(reading.gpu, Parts()),)
        }

    def of(self, gpus: Iterable[str]) -> Parts:
        """Return the mean over some devices, of those that tell."""
        known = [self._known[gpu] for gpu in gpus if gpu in self._known]
        tensor = [parts.tensor_ratio for parts in known if parts.tensor_ratio is not None]
        dram = [parts.dram_ratio for parts in known if parts.dram_ratio is not None]
        return Parts(fmean(tensor) if tensor else None, fmean(dram) if dram else None)


def _faded(before: float | None, now: float | None) -> float | None:
    if before is None or now is None:
        return now
    return before + (now - before) / _MEMORY
