"""The books of a node: messages, readings and assignments in; seconds by phase out.

Pure: nothing here reads a clock or a driver. The daemon feeds it and asks it (docs/accounting.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from disagg_exporter.accounting.busy import busy_gpus, window_ns
from disagg_exporter.accounting.device import DeviceLedger
from disagg_exporter.accounting.lane import Lane
from disagg_exporter.accounting.rules import SECOND_NS, Rules
from disagg_exporter.accounting.splits import Splits
from disagg_exporter.accounting.told import Told
from disagg_exporter.model import (
    Assignment,
    BusyGpus,
    Device,
    DeviceAccount,
    DeviceSweep,
    EngineAccount,
    EngineState,
    Method,
    Phase,
    Role,
    Step,
    StreamKey,
    TokenAccount,
)

_TokenKey = tuple[Role, Phase, str, str]


@dataclass(slots=True)
class _EngineBooks:
    """What one engine has used; it outlives the engine's processes, as counters must."""

    assignment: Assignment
    lanes: dict[int, Lane] = field(default_factory=dict)
    ended: list[Lane] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    splits: Splits = field(default_factory=Splits)
    gpu_ns: defaultdict[tuple[Role, Phase], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    tokens: Counter[tuple[Role, Phase]] = field(default_factory=Counter)
    lost_records: int = 0
    late_records: int = 0


class Ledger:
    """One node's accounting. Every method takes the time it needs as an argument."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._devices: dict[str, DeviceLedger] = {}
        self._engines: dict[str, _EngineBooks] = {}
        self._tokens: Counter[_TokenKey] = Counter()

    def add_device(self, device: Device, start_ns: int) -> None:
        """Start to account for a device; one that is known already goes on as it was."""
        self._devices.setdefault(device.gpu, DeviceLedger(device, start_ns, self._rules))

    def assign(self, assignment: Assignment) -> None:
        """Take an engine's role, devices and state from `since_ns` on; GONE is its death."""
        books = self._engines.get(assignment.engine)
        if books is None:
            books = self._engines[assignment.engine] = _EngineBooks(assignment)
        left = set(books.assignment.devices) - set(assignment.devices)
        if not books.lanes and (left or assignment.model_name != books.assignment.model_name):
            books.splits = Splits()
        books.assignment = assignment
        for gpu in (*assignment.devices, *left):
            if gpu in self._devices:
                self._devices[gpu].assign(_leaving(assignment) if gpu in left else assignment)
        if assignment.state is EngineState.GONE:
            for lane in books.lanes.values():
                lane.end(assignment.since_ns)
            self._collect(books)
            books.ended.extend(books.lanes.values())
            books.lanes.clear()
            books.told.end()

    def hear(self, key: StreamKey, said: Step, *, overlapped: bool, now_ns: int) -> None:
        """Take a hello or heartbeat of an engine's stream."""
        lane = self._lane(key)
        if lane is not None:
            self._engines[key.engine].told.take(key, said.totals)
            lane.hear(key, said, overlapped=overlapped, now_ns=now_ns)

    def step(self, key: StreamKey, step: Step, *, now_ns: int) -> None:
        """Take one step record; one of an engine that is not assigned is nobody's and ignored."""
        lane = self._lane(key)
        if lane is not None:
            self._engines[key.engine].told.take(key, step.totals)
            lane.add(key, step, now_ns=now_ns)

    def read(self, sweep: DeviceSweep) -> None:
        """Take one round of device readings."""
        for reading in sweep.readings:
            if reading.gpu in self._devices:
                self._devices[reading.gpu].read(reading)

    def advance(self, now_ns: int) -> None:
        """Commit everything that can no longer change."""
        for books in self._engines.values():
            if books.assignment.state is not EngineState.GONE:
                for lane in books.lanes.values():
                    lane.advance(now_ns)
                self._collect(books)
        for ledger in self._devices.values():
            self._commit(ledger, now_ns)
        self._drop_read_pieces()

    def device_accounts(self) -> tuple[DeviceAccount, ...]:
        """Return the committed time of every device."""
        return tuple(ledger.account() for ledger in self._devices.values())

    def engine_accounts(self, now_ns: int) -> tuple[EngineAccount, ...]:
        """Return what every engine has used, and the state its last record told."""
        return tuple(self._engine_account(books, now_ns) for books in self._engines.values())

    def token_accounts(self) -> tuple[TokenAccount, ...]:
        """Return the node's tokens by phase, those of engines long gone included."""
        return tuple(TokenAccount(*key, tokens) for key, tokens in self._tokens.items())

    def busy(self, now_ns: int) -> tuple[tuple[BusyGpus, ...], float]:
        """Return the provisional fast gauges (A8) and their window in seconds."""
        working = {
            name: list(books.lanes.values())
            for name, books in self._engines.items()
            if books.assignment.state is not EngineState.GONE
        }
        width_ns = window_ns(lane for lanes in working.values() for lane in lanes)
        gpus = busy_gpus(working, self._devices.values(), now_ns, width_ns)
        return gpus, width_ns / SECOND_NS

    def forget(self, engine: str) -> None:
        """Drop an engine that is gone for good; the devices keep what it used."""
        self._engines.pop(engine, None)

    def _lane(self, key: StreamKey) -> Lane | None:
        books = self._engines.get(key.engine)
        if books is None or books.assignment.state is EngineState.GONE:
            return None
        lane = books.lanes.get(key.engine_index)
        if lane is None:
            marks = [ledger.watermark_ns for ledger in self._ledgers(books.assignment)]
            since_ns = max([books.assignment.since_ns, *marks])
            split = books.splits.begin(key.engine_index)
            lane = books.lanes[key.engine_index] = Lane(since_ns, self._rules, split)
        return lane

    def _ledgers(self, assignment: Assignment) -> Iterable[DeviceLedger]:
        return [self._devices[gpu] for gpu in assignment.devices if gpu in self._devices]

    def _collect(self, books: _EngineBooks) -> None:
        """Take what the lanes have settled: owed time to the devices, tokens to the books."""
        owner = books.assignment
        for lane in books.lanes.values():
            for overflow in lane.overflows:
                for ledger in self._ledgers(owner):
                    ledger.owe(owner.engine, overflow)
            for phase, tokens in lane.tokens.items():
                books.tokens[owner.role, phase] += tokens
                key = (owner.role, phase, owner.model_name, owner.engine_namespace)
                self._tokens[key] += tokens
            books.lost_records += lane.lost_records
            books.late_records += lane.late_records
            lane.start_counting_anew()

    def _commit(self, ledger: DeviceLedger, now_ns: int) -> None:
        delay_ns = self._rules.packing_delay_ns
        lanes = {
            name: list(self._engines[name].lanes.values())
            for name in ledger.engines()
            if name in self._engines
        }
        marks = [lane.mark_ns for several in lanes.values() for lane in several]
        wanted_ns = min(marks, default=max(now_ns - delay_ns, ledger.last_death_ns))
        target_ns = ledger.target(wanted_ns)
        pieces = {
            name: [
                lane.between(ledger.watermark_ns, target_ns)
                for lane in (*books.ended, *books.lanes.values())
            ]
            for name, books in self._engines.items()
            if ledger.device.gpu in books.assignment.devices
        }
        for used in ledger.commit(target_ns, pieces):
            weighted_ns = used.length_ns * ledger.device.weight
            self._engines[used.engine].gpu_ns[used.role, used.phase] += weighted_ns

    def _drop_read_pieces(self) -> None:
        for books in self._engines.values():
            read_ns = min(
                (ledger.watermark_ns for ledger in self._ledgers(books.assignment)), default=None
            )
            if read_ns is None:
                continue
            for lane in (*books.ended, *books.lanes.values()):
                lane.forget_before(read_ns)
            books.ended = [lane for lane in books.ended if lane.mark_ns > read_ns + 1]

    def _engine_account(self, books: _EngineBooks, now_ns: int) -> EngineAccount:
        owner = books.assignment
        lanes = list(books.lanes.values())
        heard = [lane for lane in lanes if lane.live(now_ns)]
        split, residual_ratio, fitted_steps = books.splits.state(
            [rank for rank, lane in books.lanes.items() if lane in heard]
        )
        last = [lane.last_step for lane in heard if lane.last_step is not None]
        owed_ns = sum(ledger.debts.owed_ns(owner.engine) for ledger in self._ledgers(owner))
        cut_ns = sum(ledger.debts.cut_ns[owner.engine] for ledger in self._devices.values())
        return EngineAccount(
            engine=owner.engine,
            role=owner.role,
            model_name=owner.model_name,
            engine_namespace=owner.engine_namespace,
            watermark_ns=min((lane.mark_ns for lane in lanes), default=owner.since_ns),
            method=Method.STEPS if heard else Method.NONE,
            gpu_seconds={key: ns / SECOND_NS for key, ns in books.gpu_ns.items()},
            phase_tokens=dict(books.tokens),
            told=books.told.totals,
            cut_seconds=cut_ns / SECOND_NS,
            debt_seconds=owed_ns / SECOND_NS,
            lost_records=books.lost_records,
            late_records=books.late_records,
            running=sum(step.running for step in last) if last else None,
            waiting=sum(step.waiting for step in last) if last else None,
            deferred=sum(step.deferred for step in last) if last else None,
            kv_usage_ratio=max((step.kv_usage_ratio for step in last), default=None),
            split=split,
            residual_ratio=residual_ratio,
            fitted_steps=fitted_steps,
        )


def _leaving(assignment: Assignment) -> Assignment:
    return Assignment(
        assignment.engine,
        assignment.role,
        assignment.devices,
        EngineState.GONE,
        assignment.since_ns,
    )
