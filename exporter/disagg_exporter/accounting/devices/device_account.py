"""The books of one device: every nanosecond up to its watermark, in exactly one drawer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from disagg_exporter.accounting.devices.absences import MOST_ABSENCES, without_gaps
from disagg_exporter.accounting.devices.carry_over import CarryOver
from disagg_exporter.accounting.devices.energy import CommittedTime, EnergyLedger
from disagg_exporter.accounting.devices.forgotten import fold
from disagg_exporter.accounting.devices.meters import Meters
from disagg_exporter.accounting.devices.time_sharing import shared
from disagg_exporter.accounting.devices.unattributed import uses_of
from disagg_exporter.accounting.intervals.activity import TRAIL_NS, ActivitySample, unexplained
from disagg_exporter.accounting.intervals.intervals import (
    NEVER_NS,
    Intervals,
    cut,
    model_of,
    role_of,
)
from disagg_exporter.accounting.intervals.phase import Overflow
from disagg_exporter.accounting.intervals.rules import SECOND_NS, Rules
from disagg_exporter.accounting.intervals.timeline import REASONS, Pieces
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
    """Device time credited to an engine in one phase; nanoseconds, unweighted."""

    engine: str
    role: Role
    phase: Phase
    length_ns: int


class DeviceLedger:
    """One device's committed time and what it still has to explain."""

    def __init__(self, device: Device, start_ns: int, rules: Rules) -> None:
        self.device = device
        self.start_ns = start_ns
        self.watermark_ns = start_ns
        self.last_death_ns = start_ns
        self.cells: Counter[Cell] = Counter()
        self.debts = CarryOver(rules.debt_limit_ns)
        self.meters = Meters()
        self.energy = EnergyLedger()
        self._rules = rules
        self._engines: dict[str, Assignment] = {}
        self._changes: deque[tuple[int, Assignment]] = deque()
        self._samples: deque[ActivitySample] = deque()
        self._read_ns: int | None = None
        # The stretches without a daemon above the watermark, in order, and when the one before us
        # took its last sample: what it watched is not unknown because its samples are.
        self._absences: list[tuple[int, int]] = []
        self._sampled_before_ns: int | None = None
        self._busy_until_ns = start_ns - TRAIL_NS
        # Asked for at every reading, and the same for hours.
        self._serves: tuple[Role, tuple[str, str]] | None = None

    def checkpoint(self) -> DeviceCheckpoint:
        """Return all that a successor has to know to go on with this device."""
        sampled_ns = self._samples[-1].end_ns if self._samples else self._sampled_before_ns
        return DeviceCheckpoint(
            self.device,
            self.start_ns,
            self.watermark_ns,
            cells=tuple(self.cells.items()),
            engines=tuple(self._engines.values()),
            changes=tuple(assignment for _, assignment in self._changes),
            absences=tuple(self._absences),
            last_death_ns=self.last_death_ns,
            busy_until_ns=max(self._busy_until_ns, 0),
            sampled_ns=sampled_ns,
            carry_overs=self.debts.checkpoint(),
            cut_ns=tuple(self.debts.cut_ns.items()),
            activity_ns=tuple(self.meters.activity.items()),
            throttled_ns=tuple(self.meters.throttled.items()),
            energy=self.energy.checkpoint(),
        )

    @classmethod
    def resumed(
        cls, before: DeviceCheckpoint, absence: tuple[int, int], rules: Rules
    ) -> DeviceLedger:
        """Return the accounting of a device as it was before an absence of all daemons."""
        ledger = cls(before.device, before.start_ns, rules)
        ledger.watermark_ns = before.watermark_ns
        ledger.last_death_ns = before.last_death_ns
        ledger.cells.update(dict(before.cells))
        ledger._engines = {assignment.engine: assignment for assignment in before.engines}
        ledger._changes = deque((each.since_ns, each) for each in before.changes)
        ledger._absences = without_gaps([*before.absences, absence], MOST_ABSENCES)
        ledger._busy_until_ns = before.busy_until_ns
        ledger._sampled_before_ns = before.sampled_ns
        ledger.debts.resume(before.carry_overs, before.cut_ns)
        ledger.meters.resume(before.activity_ns, before.throttled_ns)
        ledger.energy.resume(before.energy)
        return ledger

    def assign(self, assignment: Assignment) -> None:
        """Take a change of an engine's state or role, from `since_ns` on."""
        if assignment.state is EngineState.GONE:
            self.last_death_ns = max(self.last_death_ns, assignment.since_ns)
        self._serves = None
        self._changes.append((assignment.since_ns, assignment))
        self._changes = deque(sorted(self._changes, key=lambda change: change[0]))

    def read(self, reading: DeviceReading) -> None:
        """Take what the device told since the reading before; readings come in time order."""
        before_ns, self._read_ns = self._read_ns, reading.t_ns
        if self._serves is None:
            engines = self.engines()
            self._serves = role_of(engines), model_of(engines)
        self.meters.read(reading, before_ns, *self._serves)
        self.energy.read(reading, self.watermark_ns)
        if before_ns is None or reading.busy_ratio is None:
            return
        # After a hole in the readings the ratio says nothing about the hole.
        start_ns = max(before_ns, reading.t_ns - SECOND_NS)
        if reading.t_ns > self.watermark_ns:
            self._samples.append(ActivitySample(start_ns, reading.t_ns, reading.busy_ratio))

    def forget_model(self, model_name: str) -> None:
        """Take the name off what a model used here, unless it is served."""
        serving = {a.model_name for a in (*self._engines.values(), *self.engines().values())}
        if model_name not in serving:
            for sums in (self.cells, self.energy.microjoules):
                fold(sums, model_name)
            fold(self.meters.activity, model_name)

    def activity(self, after_ns: int, until_ns: int) -> tuple[ActivitySample, ...]:
        """Return the samples that end in (after_ns, until_ns], in order."""
        return tuple(s for s in self._samples if after_ns < s.end_ns <= until_ns)

    def owe(self, engine: str, overflow: Overflow) -> None:
        """Take over step time that found no room, to be paid into the engine's next idle here."""
        self.debts.owe(engine, self.engines().get(engine), overflow)

    def engines(self) -> Mapping[str, Assignment]:
        """Return who uses the device after all changes known now."""
        current = dict(self._engines)
        for _, assignment in self._changes:
            _apply(current, assignment)
        return current

    def awaited(self) -> Mapping[str, int]:
        """Return whose timelines are still to be read here, and up to when.

        An engine that has left is awaited until it left: what it did here may not be known yet.
        """
        until_ns = dict.fromkeys(self._engines, NEVER_NS)
        for since_ns, assignment in self._changes:
            gone = assignment.state is EngineState.GONE
            if assignment.engine in until_ns or not gone:
                until_ns[assignment.engine] = since_ns if gone else NEVER_NS
        return {name: ns for name, ns in until_ns.items() if ns > self.watermark_ns}

    def commit(
        self, target_ns: int, pieces: Mapping[str, Sequence[tuple[int, Pieces]]]
    ) -> list[Credit]:
        """Account for all time up to `target_ns`; return what each engine was credited."""
        used: list[Credit] = []
        while self.watermark_ns < target_ns:
            while self._changes and self._changes[0][0] <= self.watermark_ns:
                _apply(self._engines, self._changes.popleft()[1])
            end_ns = min(target_ns, self._changes[0][0]) if self._changes else target_ns
            absent, end_ns = self._without_daemon(end_ns)
            self.debts.close(self._engines)
            lanes = [
                (name, lane)
                for name, owner in self._engines.items()
                for rank, lane in pieces.get(name, ())
                if self.device.gpu in owner.of_rank(rank)
            ]
            slices = cut(self.watermark_ns, end_ns, self._engines, lanes, absent=absent)
            used.extend(self._commit_slices(slices))
            self.watermark_ns = end_ns
        while self._samples and self._samples[0].end_ns <= self.watermark_ns:
            self._samples.popleft()
        return used

    def target(self, wanted_ns: int) -> int:
        """Round a wanted watermark down to what may be committed now (A5, whole blocks)."""
        if self._absences and self._read_ns is None and self.energy.microjoules is not None:
            # The next reading tells the energy of the absence, which is split as that is committed.
            wanted_ns = wanted_ns if wanted_ns > self._absences[-1][1] else self.watermark_ns
        if not self._watched(wanted_ns):
            return wanted_ns
        block_ns = wanted_ns - wanted_ns % self._rules.block_ns
        changes = [since_ns for since_ns, _ in self._changes if since_ns <= wanted_ns]
        return max([self.watermark_ns, block_ns, *changes])

    def account(self) -> DeviceAccount:
        """Return the books as they are added up: in slice-nanoseconds."""
        slices, energy = self.device.slices, self.energy.microjoules
        return DeviceAccount(
            device=self.device,
            role=role_of(self.engines()),
            start_ns=self.start_ns,
            watermark_ns=self.watermark_ns,
            slice_ns={cell: length_ns * slices for cell, length_ns in self.cells.items()},
            active_slice_ns={cell: ns * slices for cell, ns in self.meters.activity.items()},
            throttled_ns=dict(self.meters.throttled),
            microjoules=None if energy is None else dict(energy),
        )

    def _without_daemon(self, end_ns: int) -> tuple[bool, int]:
        """Say whether a daemon ran from the watermark on, and up to when that holds at most."""
        while self._absences and self._absences[0][1] <= self.watermark_ns:
            del self._absences[0]
        if not self._absences:
            return False, end_ns
        from_ns, until_ns = self._absences[0]
        absent = from_ns <= self.watermark_ns
        return absent, min(end_ns, until_ns if absent else from_ns)

    def _watched(self, at_ns: int) -> bool:
        fresh_ns = at_ns - self._rules.activity_fresh_ns
        sampled_ns = self._samples[-1].end_ns if self._samples else self._sampled_before_ns
        return sampled_ns is not None and sampled_ns >= fresh_ns

    def _commit_slices(self, slices: Intervals) -> list[Credit]:
        role = role_of(self._engines)
        unheld, active = self._unheld(slices)
        used = self._share(slices, role)
        idle = Counter({reason: ns - active[reason] for reason, ns in unheld.items()})
        went: dict[Reason, Counter[Cell]] = {reason: Counter() for reason in unheld}
        owners = {name: (a.model_name, a.engine_namespace) for name, a in self._engines.items()}
        for engine, reason, prefill_ns, decode_ns in self.debts.pay(idle, self._engines):
            unheld[reason] -= prefill_ns + decode_ns
            used.extend(self._credit(engine, role, prefill_ns, decode_ns))
            owner = owners[engine]
            went[reason][Cell(role, Use.PREFILL, Reason.NONE, *owner)] += prefill_ns
            went[reason][Cell(role, Use.DECODE, Reason.NONE, *owner)] += decode_ns
        watched = self._watched(int(slices.edges_ns[-1]))
        owner = model_of(self._engines)
        for reason, length_ns in unheld.items():
            active_ns = min(active[reason], length_ns)
            # Without its engine nobody uses a pseudo-device, which tells nothing itself.
            observed = watched or (self.device.is_pseudo and reason is Reason.NO_ENGINE)
            for use, why, part_ns in uses_of(reason, active_ns, length_ns - active_ns, observed):
                self._book(role, use, why, owner, part_ns)
                went[reason][Cell(role, use, Reason.NONE, *owner)] += part_ns
        self.energy.commit(CommittedTime(slices, role, owners, went))
        return used

    def _unheld(self, slices: Intervals) -> tuple[Counter[Reason], Counter[Reason]]:
        """Return the time nobody held, and how much of it the driver saw activity in."""
        active = unexplained(slices, self._samples, self._busy_until_ns)
        busy, lengths_ns = slices.busy, slices.lengths_ns
        if busy.any():
            last = int(np.flatnonzero(busy)[-1])
            self._busy_until_ns = int(slices.edges_ns[last + 1])
        unheld: Counter[Reason] = Counter()
        for code in np.unique(slices.reasons[~busy]):
            unheld[REASONS[code]] = int(lengths_ns[slices.reasons == code].sum())
        return unheld, active

    def _share(self, slices: Intervals, role: Role) -> list[Credit]:
        """Credit those who hold the device with their shares of it."""
        held = dict.fromkeys(self._engines, (0, 0, 0)) | shared(slices)
        used: list[Credit] = []
        for engine, (prefill_ns, decode_ns, dummy_ns) in held.items():
            used.extend(self._credit(engine, role, prefill_ns, decode_ns))
            owner = self._engines[engine]
            owned_by = owner.model_name, owner.engine_namespace
            self._book(role, Use.UNATTRIBUTED, Reason.DUMMY, owned_by, dummy_ns)
        return used

    def _credit(self, engine: str, role: Role, prefill_ns: int, decode_ns: int) -> list[Credit]:
        owner = self._engines[engine]
        owned_by = owner.model_name, owner.engine_namespace
        self._book(role, Use.PREFILL, Reason.NONE, owned_by, prefill_ns)
        self._book(role, Use.DECODE, Reason.NONE, owned_by, decode_ns)
        return [
            Credit(engine, owner.role, phase, length_ns)
            for phase, length_ns in ((Phase.PREFILL, prefill_ns), (Phase.DECODE, decode_ns))
            if length_ns
        ]

    def _book(
        self, role: Role, use: Use, reason: Reason, owned_by: tuple[str, str], length_ns: int
    ) -> None:
        if length_ns:
            self.cells[Cell(role, use, reason, *owned_by)] += length_ns


def _apply(engines: dict[str, Assignment], assignment: Assignment) -> None:
    if assignment.state is EngineState.GONE:
        engines.pop(assignment.engine, None)
    else:
        engines[assignment.engine] = assignment
