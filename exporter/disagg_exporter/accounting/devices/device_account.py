"""Per-device accounting: every nanosecond below the committed watermark is in exactly one cell.

A cell is a (role, phase, reason) of one model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from disagg_exporter.accounting.devices.assignments import (
    Absences,
    DeviceAssignments,
    model_of,
    owner_of,
    role_of,
)
from disagg_exporter.accounting.devices.carry_over import CarryOver
from disagg_exporter.accounting.devices.energy import CommittedTime, EnergyLedger
from disagg_exporter.accounting.devices.late_steps import LateSteps
from disagg_exporter.accounting.devices.meters import Meters
from disagg_exporter.accounting.devices.removed_devices import fold
from disagg_exporter.accounting.intervals.activity import TRAIL_NS, ActivitySamples
from disagg_exporter.accounting.intervals.intervals import (
    Intervals,
    cut,
    shared,
    unexplained,
    uses_of,
)
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.intervals.timeline import REASONS, Overflow, Pieces
from disagg_exporter.model import (
    Assignment,
    Cell,
    Device,
    DeviceAccount,
    DeviceReading,
    EngineState,
    Phase,
    Reason,
    Role,
    Use,
)
from disagg_exporter.model.checkpoints import DeviceCheckpoint


class Credit(NamedTuple):
    """Device time credited to an engine in one phase; nanoseconds, unweighted.

    Role and owner (model name, namespace) are the engine's when it used the time.
    """

    engine: str
    role: Role
    owner: tuple[str, str]
    phase: Phase
    length_ns: int


class DeviceLedger:
    """One device's committed time, and its state above the watermark."""

    def __init__(self, device: Device, start_ns: int, rules: Rules) -> None:
        self.device = device
        self.start_ns = start_ns
        self.watermark_ns = start_ns
        self.last_death_ns = start_ns
        self.assignments = DeviceAssignments()
        self.cells: Counter[Cell] = Counter()
        self.carry_over = CarryOver(rules.carry_over_limit_ns)
        self.meters = Meters()
        self.energy = EnergyLedger()
        self.activity = ActivitySamples(rules.activity_fresh_ns)
        self._rules = rules
        self._late_steps = LateSteps(rules.longest_step_ns)
        self._read_ns: int | None = None
        self._absences = Absences()
        self._busy_until_ns = start_ns - TRAIL_NS
        # Cached: needed at every reading, constant for hours.
        self._serves: tuple[Role, tuple[str, str]] | None = None

    def checkpoint(self) -> DeviceCheckpoint:
        """Return the state from which the next daemon continues with this device."""
        return DeviceCheckpoint(
            self.device,
            self.start_ns,
            self.watermark_ns,
            cells=tuple(self.cells.items()),
            engines=tuple(self.assignments.committed.values()),
            changes=tuple(self.assignments.changes),
            absences=tuple(self._absences.stretches),
            last_death_ns=self.last_death_ns,
            busy_until_ns=max(self._busy_until_ns, 0),
            sampled_ns=self.activity.last_ns,
            carry_overs=self.carry_over.checkpoint(),
            cut_ns=tuple(self.carry_over.cut_ns.items()),
            activity_ns=tuple(self.meters.activity.items()),
            activity_lengths_ns=tuple(self.meters.lengths.items()),
            throttled_ns=tuple(self.meters.throttled.items()),
            energy=self.energy.checkpoint(),
            unclaimed=self._late_steps.checkpoint(),
        )

    @classmethod
    def resumed(
        cls, before: DeviceCheckpoint, absence: tuple[int, int], rules: Rules
    ) -> DeviceLedger:
        """Return a device's accounting as it was before the absence of a daemon."""
        ledger = cls(before.device, before.start_ns, rules)
        ledger.watermark_ns, ledger.last_death_ns = before.watermark_ns, before.last_death_ns
        ledger.assignments = DeviceAssignments(before.engines, before.changes)
        ledger.cells.update(dict(before.cells))
        ledger._absences = Absences([*before.absences, absence])
        ledger._busy_until_ns = before.busy_until_ns
        ledger.activity = ActivitySamples(rules.activity_fresh_ns, before.sampled_ns)
        ledger.carry_over.resume(before.carry_overs, before.cut_ns)
        ledger.meters.resume(before.activity_ns, before.activity_lengths_ns, before.throttled_ns)
        ledger.energy.resume(before.energy)
        ledger._late_steps = LateSteps(rules.longest_step_ns, before.unclaimed)
        return ledger

    def assign(self, assignment: Assignment) -> None:
        """Apply a change of an engine's state or role, from `since_ns` on."""
        if assignment.state is EngineState.GONE:
            self.last_death_ns = max(self.last_death_ns, assignment.since_ns)
        self._serves = None
        self.assignments.add(assignment)

    def read(self, reading: DeviceReading) -> None:
        """Ingest the device's next reading; readings arrive in order of time."""
        before_ns, self._read_ns = self._read_ns, reading.t_ns
        if self._serves is None:
            engines = self.engines()
            self._serves = role_of(engines), model_of(engines)
        self.meters.read(reading, before_ns, *self._serves)
        self.energy.read(reading, self.watermark_ns)
        if before_ns is None or reading.busy_ratio is None:
            return
        if reading.t_ns > self.watermark_ns:
            self.activity.add(before_ns, reading.t_ns, reading.busy_ratio)

    def serves(self, model_name: str) -> bool:
        """Return whether an engine of the model holds it, at the watermark or now."""
        engines = (*self.assignments.committed.values(), *self.engines().values())
        return any(assignment.model_name == model_name for assignment in engines)

    def forget_model(self, model_name: str) -> None:
        """Move a model's sums to the unnamed model; it must no longer be served."""
        fold(self.cells, model_name)
        self.energy.forget_model(model_name)
        fold(self.meters.activity, model_name)
        fold(self.meters.lengths, model_name)

    def active_since(self, after_ns: int) -> bool | None:
        """Return whether a sample that ends later shows activity; None without such samples.

        Also None if several engines hold it: a sample does not show whose activity it is.
        """
        return self.activity.active_since(after_ns) if len(self.engines()) == 1 else None

    def defer(self, engine: str, overflows: Iterable[Overflow]) -> None:
        """Carry over step time that found no room to the engine's next idle time here.

        Time already committed as unattributed activity is cut instead: it has been counted.
        """
        for overflow in overflows:
            until_ns, length_ns = overflow.until_ns, overflow.length_ns
            counted_ns = self._late_steps.add(until_ns - length_ns, until_ns, self.watermark_ns)
            self.carry_over.cut_ns[engine] += sum(overflow.work.divide(counted_ns)[:2])
            left = overflow._replace(length_ns=length_ns - counted_ns)
            self.carry_over.defer(engine, self.engines().get(engine), left)

    def engines(self) -> Mapping[str, Assignment]:
        """Return the device's engines after all known changes."""
        return self.assignments.latest()

    def awaited(self) -> Mapping[str, int]:
        """Return the engines whose timelines this device has yet to read, and up to when."""
        return self.assignments.awaited(self.watermark_ns)

    def commit(
        self, target_ns: int, pieces: Mapping[str, Sequence[tuple[int, Pieces]]]
    ) -> list[Credit]:
        """Commit all time up to `target_ns`; return the engines' credits."""
        credits: list[Credit] = []
        changes = self.assignments.changes
        while self.watermark_ns < target_ns:
            self.assignments.commit_until(self.watermark_ns)
            engines = self.assignments.committed
            end_ns = min(target_ns, changes[0].since_ns) if changes else target_ns
            absent, end_ns = self._absences.at(self.watermark_ns, end_ns)
            watched, end_ns = self.activity.watched(self.watermark_ns, end_ns)
            self.carry_over.close(engines)
            timelines = [
                (name, timeline)
                for name, assignment in engines.items()
                for rank, timeline in pieces.get(name, ())
                if self.device.gpu in assignment.of_rank(rank)
            ]
            intervals = cut(self.watermark_ns, end_ns, engines, timelines, absent=absent)
            credits.extend(self._commit(intervals, engines, watched=watched))
            self.watermark_ns = end_ns
        self.activity.drop_until(self.watermark_ns)
        return credits

    def target(self, wanted_ns: int) -> int:
        """Return how far a desired watermark may be committed now (A5, whole blocks)."""
        absences = self._absences.stretches
        if absences and self._read_ns is None and self.energy.microjoules is not None:
            # The next reading includes the absence's energy, which is split when it is committed.
            wanted_ns = wanted_ns if wanted_ns > absences[-1][1] else self.watermark_ns
        if not self.activity.is_watched(wanted_ns):
            return wanted_ns
        block_ns = wanted_ns - wanted_ns % self._rules.block_ns
        changes = [change.since_ns for change in self.assignments.changes]
        return max([self.watermark_ns, block_ns, *(ns for ns in changes if ns <= wanted_ns)])

    def account(self) -> DeviceAccount:
        """Return the sums in slice-nanoseconds."""
        slices, energy = self.device.slices, self.energy.microjoules
        return DeviceAccount(
            device=self.device,
            role=role_of(self.engines()),
            start_ns=self.start_ns,
            watermark_ns=self.watermark_ns,
            slice_ns={cell: length_ns * slices for cell, length_ns in self.cells.items()},
            active_slice_ns={cell: ns * slices for cell, ns in self.meters.activity.items()},
            read_slice_ns={cell: ns * slices for cell, ns in self.meters.lengths.items()},
            throttled_ns=dict(self.meters.throttled),
            microjoules=None if energy is None else dict(energy),
            metered_slice_ns={cell: ns * slices for cell, ns in self.energy.lengths_ns.items()},
            watts=self.energy.power.by_use(),
        )

    def _commit(
        self, intervals: Intervals, engines: Mapping[str, Assignment], *, watched: bool
    ) -> Iterator[Credit]:
        role = role_of(engines)
        unheld, active = self._unheld(intervals)
        held = dict.fromkeys(engines, (0, 0, 0)) | shared(intervals)
        for engine, (prefill_ns, decode_ns, dummy_ns) in held.items():
            yield from self._credit(engines[engine], role, prefill_ns, decode_ns)
            owner = owner_of(engines[engine])
            self._add(Cell(role, Use.UNATTRIBUTED, Reason.DUMMY, *owner), dummy_ns)
        idle = Counter({reason: ns - active[reason] for reason, ns in unheld.items()})
        # For each reason, the cells (without reasons) that its time goes to.
        parts: dict[Reason, Counter[Cell]] = {reason: Counter() for reason in unheld}
        for engine, reason, prefill_ns, decode_ns in self.carry_over.settle(idle, engines):
            unheld[reason] -= prefill_ns + decode_ns
            yield from self._credit(engines[engine], role, prefill_ns, decode_ns)
            owner = owner_of(engines[engine])
            parts[reason][Cell(role, Use.PREFILL, Reason.NONE, *owner)] += prefill_ns
            parts[reason][Cell(role, Use.DECODE, Reason.NONE, *owner)] += decode_ns
        owner, nobodys_ns = model_of(engines), 0
        for reason, length_ns in unheld.items():
            active_ns = min(active[reason], length_ns)
            # A pseudo-device has no readings; without its engine it is known to be idle.
            observed = watched or (self.device.is_pseudo and reason is Reason.NO_ENGINE)
            for use, why, part_ns in uses_of(reason, active_ns, length_ns - active_ns, observed):
                self._add(Cell(role, use, why, *owner), part_ns)
                nobodys_ns += part_ns if use is Use.UNATTRIBUTED else 0
                parts[reason][Cell(role, use, Reason.NONE, *owner)] += part_ns
        self._late_steps.commit(intervals.edges_ns, nobodys_ns)
        owners = {name: owner_of(assignment) for name, assignment in engines.items()}
        self.energy.commit(CommittedTime(intervals, role, owners, parts))

    def _unheld(self, intervals: Intervals) -> tuple[Counter[Reason], Counter[Reason]]:
        """Return the time without a holder and its active part, both by reason."""
        active = unexplained(
            intervals, self._late_steps.others(self.activity.kept), self._busy_until_ns
        )
        busy, lengths_ns = intervals.busy, intervals.lengths_ns
        if busy.any():
            last = int(np.flatnonzero(busy)[-1])
            self._busy_until_ns = int(intervals.edges_ns[last + 1])
        unheld: Counter[Reason] = Counter()
        for code in np.flatnonzero(np.bincount(intervals.reasons[~busy])).tolist():
            unheld[REASONS[code]] = int(lengths_ns[intervals.reasons == code].sum())
        return unheld, active

    def _credit(
        self, assignment: Assignment, role: Role, prefill_ns: int, decode_ns: int
    ) -> Iterator[Credit]:
        owner = owner_of(assignment)
        parts = (Phase.PREFILL, Use.PREFILL, prefill_ns), (Phase.DECODE, Use.DECODE, decode_ns)
        for phase, use, length_ns in parts:
            if length_ns:
                self.cells[Cell(role, use, Reason.NONE, *owner)] += length_ns
                yield Credit(assignment.engine, assignment.role, owner, phase, length_ns)

    def _add(self, cell: Cell, length_ns: int) -> None:
        if length_ns:
            self.cells[cell] += length_ns
