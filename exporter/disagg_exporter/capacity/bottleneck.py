"""The resource that limits an engine (docs/capacity.md has each verdict's formula)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from disagg_exporter.model import Bottleneck, DeviceReading

_FADING_READINGS = 20


@dataclass(frozen=True, slots=True)
class ActivityRatios:
    """Activity (0 to 1) of tensor cores and memory; None where no device reports it."""

    tensor_ratio: float | None = None
    dram_ratio: float | None = None


class DeviceActivity:
    """Fading means: of twenty readings, one per second, the oldest has a third of the weight."""

    def __init__(self) -> None:
        self._known: dict[str, ActivityRatios] = {}

    def ingest(self, readings: Iterable[DeviceReading]) -> None:
        """Add one reading of each device; devices without a reading are forgotten."""
        self._known = {
            reading.gpu: ActivityRatios(
                _fading_mean(before.tensor_ratio, reading.tensor_ratio),
                _fading_mean(before.dram_ratio, reading.dram_ratio),
            )
            for reading in readings
            for before in (self._known.get(reading.gpu, ActivityRatios()),)
        }

    def of(self, gpus: Iterable[str]) -> ActivityRatios:
        """Return the mean over the given devices that report it."""
        known = [self._known[gpu] for gpu in gpus if gpu in self._known]
        tensor = [parts.tensor_ratio for parts in known if parts.tensor_ratio is not None]
        dram = [parts.dram_ratio for parts in known if parts.dram_ratio is not None]
        return ActivityRatios(fmean(tensor) if tensor else None, fmean(dram) if dram else None)


def _fading_mean(before: float | None, now: float | None) -> float | None:
    if before is None or now is None:
        return now
    return before + (now - before) / _FADING_READINGS


FULL_CACHE = 0.9
WAITING = 0.1
ROOM = 0.5
GAP = 0.25
ACTIVE = 0.2
MOSTLY = 0.5
HYSTERESIS = 0.85
"""Hysteresis: a current verdict is left only when its figure falls below this part of its bound."""


@dataclass(frozen=True, slots=True)
class BottleneckEvidence:
    """An engine's last minute; None where a value is not known.

    `waiting_ratio` is the share of time in which requests waited for room, `gap_ratio` the host's
    share of the time from step to step with work pending, `prefill_ratio` prefill's share of step
    time. `knee_ratio` is the usual prefill step over the knee, infinite where the knee is below all
    steps. Activities are means over the engine's devices.
    """

    kv_usage_ratio: float | None
    waiting_ratio: float = 0.0
    preempted: bool = False
    used_ratio: float | None = None
    gap_ratio: float | None = None
    prefill_ratio: float | None = None
    knee_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None


def bottleneck_of(
    evidence: BottleneckEvidence | None, before: Bottleneck = Bottleneck.UNKNOWN
) -> Bottleneck:
    """Return the first verdict whose condition holds; `before` is the current one."""
    if evidence is None:
        return Bottleneck.UNKNOWN

    def limit(most: float, *bounds: Bottleneck) -> float:
        return most * HYSTERESIS if before in bounds else most

    held_up = evidence.preempted or evidence.waiting_ratio >= limit(WAITING, Bottleneck.KV)
    if held_up and evidence.kv_usage_ratio is None:
        return Bottleneck.UNKNOWN  # it may be the cache
    in_use = evidence.kv_usage_ratio or 0.0
    if held_up and in_use >= limit(FULL_CACHE, Bottleneck.KV):
        return Bottleneck.KV
    room = ROOM / HYSTERESIS if before is Bottleneck.NONE else ROOM
    if evidence.used_ratio is not None and evidence.used_ratio < room:
        return Bottleneck.NONE
    if evidence.gap_ratio is not None and evidence.gap_ratio >= limit(GAP, Bottleneck.HOST):
        return Bottleneck.HOST
    tensor, dram = evidence.tensor_ratio, evidence.dram_ratio
    units = Bottleneck.COMPUTE, Bottleneck.BANDWIDTH
    if tensor is not None and dram is not None and max(tensor, dram) >= limit(ACTIVE, *units):
        if before is Bottleneck.COMPUTE:
            return Bottleneck.COMPUTE if tensor >= dram * HYSTERESIS else Bottleneck.BANDWIDTH
        if before is Bottleneck.BANDWIDTH:
            return Bottleneck.BANDWIDTH if dram >= tensor * HYSTERESIS else Bottleneck.COMPUTE
        return Bottleneck.COMPUTE if tensor >= dram else Bottleneck.BANDWIDTH
    prefill, knee = evidence.prefill_ratio, evidence.knee_ratio
    if knee is not None and prefill is not None and prefill >= limit(MOSTLY, *units):
        beyond = knee >= limit(1.0, Bottleneck.COMPUTE)
        return Bottleneck.COMPUTE if beyond else Bottleneck.BANDWIDTH
    return Bottleneck.UNKNOWN
