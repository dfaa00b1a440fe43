"""Scenarios with two faults at once."""

from __future__ import annotations

from dataclasses import replace

from bench.diagnosis.kinds import engine_kinds, flow_kinds
from bench.diagnosis.kinds.drawing import Draw, Kind, Play
from bench.diagnosis.scenario import SecondFault, Truth

from disagg_cluster.planner.diagnose.verdict.values import Cause

_SINGLE: tuple[tuple[Cause, Kind], ...] = (
    (Cause.SLOW_GPU, engine_kinds.throttled),
    (Cause.SLOW_GPU, engine_kinds.sick),
    (Cause.STRANGER, engine_kinds.stranger),
    (Cause.HOST_BOUND, engine_kinds.host_bound),
    (Cause.KV_TRANSFER, flow_kinds.slow_links),
    (Cause.LATENCY_FLOOR, flow_kinds.latency_floor),
)


def two_faults(draw: Draw) -> Play:
    """Two faults with different causes, on different engines if both affect engines."""
    (first_cause, first), (second_cause, second) = draw.ranges.rng.sample(_SINGLE, 2)
    while second_cause is first_cause:
        second_cause, second = draw.ranges.rng.choice(_SINGLE)
    one, other = first(draw), second(draw)
    while one.engines & other.engines:
        other = second(draw)
    truth = Truth((second_cause,), other.engines, other.also)
    return replace(one, causes=(first_cause,), second=SecondFault(truth, other.faults))
