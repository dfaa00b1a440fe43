"""Finalized time of the engines' timelines, committed to the devices' accounting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from disagg_exporter.accounting.devices.assignments import owner_of
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.engine_account import EngineLedger
from disagg_exporter.accounting.engine_reports import NodeTokens
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.model import Assignment, Phase


def collect(engine: EngineLedger, devices: Mapping[str, DeviceLedger], node: NodeTokens) -> None:
    """Collect what an engine's timelines have finalized: overflows, tokens, lost records."""
    assignment = engine.assignment
    for rank, timeline in engine.timelines.items():
        for gpu in assignment.of_rank(rank):
            if gpu in devices:
                devices[gpu].defer(assignment.engine, timeline.overflows)
        _count(engine, node, assignment, (0, 0))  # both phases are there from the start
        for tokens in timeline.tokens:
            for owner, *counts in engine.history.shares(tokens):
                _count(engine, node, owner, counts)
        engine.lost_records += timeline.lost_records
        engine.late_records += timeline.late_records
        timeline.reset_counts()
    engine.count_costs()
    marks_ns = (timeline.mark_ns for timeline in engine.timelines.values())
    engine.history.forget_before(min(marks_ns, default=0))


def _count(
    engine: EngineLedger, node: NodeTokens, owner: Assignment, counts: Sequence[int]
) -> None:
    for phase, count in zip(Phase, counts, strict=True):
        engine.tokens[owner.role, phase] += count
        node.count(owner, phase, count)


def commit(
    device: DeviceLedger,
    engines: Mapping[str, EngineLedger],
    node: NodeTokens,
    now_ns: int,
    rules: Rules,
) -> None:
    """Move a device's watermark as far as its engines let it, and credit them (A6)."""
    until_ns = device.awaited()
    awaited = {name: engines[name] for name in until_ns if name in engines}
    marks_ns = [
        timeline.mark_ns
        for name, engine in awaited.items()
        for timeline in engine.timelines.values()
        if timeline.mark_ns < until_ns[name]
    ]
    free_ns = max(now_ns - rules.packing_delay_ns, device.last_death_ns)
    target_ns = device.target(min(marks_ns, default=free_ns))
    if target_ns <= device.watermark_ns:
        return
    pieces = {
        name: engine.between(device.watermark_ns, target_ns) for name, engine in awaited.items()
    }
    for credit in device.commit(target_ns, pieces):
        # What was carried over for an engine that is forgotten is the device's alone.
        if credit.engine in engines:
            slice_ns = credit.length_ns * device.device.slices
            engine = engines[credit.engine]
            engine.gpu_slice_ns[credit.role, credit.phase] += slice_ns
            if engine.reports_tokens(credit.phase):
                owner = owner_of(engine.assignment)
                node.count_time(credit.role, credit.phase, owner, slice_ns)


def watermarks(devices: Iterable[DeviceLedger]) -> dict[str, set[int]]:
    """Return for each engine the watermarks of the devices that still read its timelines."""
    read_ns: defaultdict[str, set[int]] = defaultdict(set)
    for device in devices:
        for name in device.awaited():
            read_ns[name].add(device.watermark_ns)
    return read_ns


def drop_read(devices: Iterable[DeviceLedger], engines: Mapping[str, EngineLedger]) -> None:
    """Drop of every engine's timelines what all devices have read that still read them."""
    read_ns = watermarks(devices)
    for name, engine in engines.items():
        engine.drop_read(min(read_ns.get(name, ()), default=None))
