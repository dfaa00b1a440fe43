"""Resumes the previous daemon's accounting: devices, engines, and engines not found again yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from disagg_exporter.accounting.awaited_steps import AwaitedSteps
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.engine_account import EngineLedger, watermarks
from disagg_exporter.accounting.engine_reports import AssignmentHistory
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.model import Assignment, Device, EngineState, Method, StreamKey
from disagg_exporter.model.checkpoints import (
    EngineCheckpoint,
    LedgerCheckpoint,
    TimelineCheckpoint,
)


def resumed_devices(
    before: LedgerCheckpoint, devices: Iterable[Device], now_ns: int, rules: Rules
) -> tuple[dict[str, DeviceLedger], list[DeviceLedger]]:
    """Return the accounting of devices that continue, and of those that no longer exist.

    Args:
        before: The previous daemon's checkpoint.
        devices: The node's present devices. A pseudo-device belongs to its engine and continues
            without being among them.
        now_ns: The end of the time without a daemon.
        rules: The rules.
    """
    here = {device.gpu: device for device in devices}
    present: dict[str, DeviceLedger] = {}
    removed: list[DeviceLedger] = []
    for saved in before.devices:
        ledger = DeviceLedger.resumed(saved, (before.taken_ns, now_ns), rules)
        known = saved.device
        current = here.get(known.gpu, known if known.is_pseudo else None)
        if current is None or not known.counts_as(current):
            removed.append(ledger)
        else:
            ledger.device = current
            present[known.gpu] = ledger
    return present, removed


def engine_checkpoints(
    engines: Iterable[EngineLedger], devices: Iterable[DeviceLedger]
) -> tuple[EngineCheckpoint, ...]:
    """Return what every engine has used, and its time that devices have yet to read."""
    read_ns = watermarks(devices)
    return tuple(_saved(engine, read_ns.get(engine.assignment.engine, ())) for engine in engines)


def _saved(engine: EngineLedger, read_ns: Collection[int]) -> EngineCheckpoint:
    """Return what an engine has used; its devices have read its timelines up to `read_ns`."""
    ended = [each.checkpoint(rank, read_ns) for rank, each in engine.ended]
    live: list[TimelineCheckpoint] = []
    for rank, each in engine.timelines.items():
        group = live if isinstance(each, StepTimeline) else ended
        group.append(each.checkpoint(rank, read_ns))
    return EngineCheckpoint(
        engine.assignment,
        engine.history.checkpoint(),
        engine.method,
        live=tuple(live),
        ended=tuple(ended),
        reported=engine.reported.totals,
        gpu_slice_ns=tuple((*key, ns) for key, ns in engine.gpu_slice_ns.items()),
        tokens=tuple((*key, count) for key, count in engine.tokens.items()),
        lost_records=engine.lost_records,
        late_records=engine.late_records,
        cut_ns=engine.cut_ns,
        loss_ns=engine.loss_ns,
        gain_ns=engine.gain_ns,
        known_ns=engine.known_ns,
        expected=engine.expected,
    )


def resumed_engine(before: EngineCheckpoint, resumed_ns: int, rules: Rules) -> EngineLedger:
    """Return an engine's accounting from a checkpoint; window timelines end with their daemon."""
    engine, history = before.assignment.engine, AssignmentHistory.resumed(before.history)
    ledger = EngineLedger(before.assignment, history, before.method)
    for saved in before.live:
        split = ledger.costs.begin(saved.engine_index)
        timeline = StepTimeline.resumed(engine, saved, resumed_ns, rules, split)
        ledger.timelines[saved.engine_index] = timeline
    for saved in before.ended:
        timeline = StepTimeline.resumed(engine, saved, resumed_ns, rules)
        ledger.ended.append((saved.engine_index, timeline))
    # Streams of other sources are numbered by the daemon that received them, so they are dropped.
    streams = {
        StreamKey(engine, stream.pid, stream.incarnation, saved.engine_index): stream.totals
        for saved in (before.live if before.method is Method.STEPS else ())
        for stream in saved.streams
    }
    ledger.reported.resume(before.reported, streams)
    ledger.awaited_steps = AwaitedSteps({key.pid for key in streams})
    ledger.gpu_slice_ns.update({(role, phase): ns for role, phase, ns in before.gpu_slice_ns})
    ledger.tokens.update({(role, phase): count for role, phase, count in before.tokens})
    ledger.lost_records, ledger.late_records = before.lost_records, before.late_records
    ledger.cut_ns = before.cut_ns
    ledger.loss_ns, ledger.gain_ns = before.loss_ns, before.gain_ns
    ledger.known_ns, ledger.expected = before.known_ns, before.expected
    return ledger


class AwaitedEngines:
    """Engines of the previous daemon that have not answered yet, and since when each is awaited."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._found: set[str] = set()

    @property
    def missing(self) -> frozenset[str]:
        """Engines that have not been found again."""
        return frozenset(self._since_ns.keys() - self._found)

    def expect(self, engine: str, since_ns: int) -> None:
        """Await an engine."""
        self._since_ns[engine] = since_ns

    def is_adopted(self, known: Assignment, now: Assignment) -> bool:
        """Return whether an assignment is of an awaited process that has not answered yet.

        Until it answers, its role and state stay as they were.
        """
        engine = now.engine
        if engine not in self._since_ns or now.state is not EngineState.STARTING:
            return False
        if now.pids != known.pids or known.state is EngineState.GONE:
            return False
        self._found.add(engine)
        return True

    def arrive(self, known: Assignment, now: Assignment) -> int | None:
        """End the wait for an engine; return since when its earlier process has been gone.

        None if that process still exists, or was gone already.
        """
        since_ns = self.drop(now.engine)
        stays = now.pids == known.pids or known.state is EngineState.GONE
        return None if stays else since_ns

    def drop(self, engine: str) -> int | None:
        """End the wait for an engine; return since when it was awaited."""
        self._found.discard(engine)
        return self._since_ns.pop(engine, None)
