"""The books of a node: messages, readings and assignments in; seconds by phase out.

Pure: nothing here reads a clock or a driver. The daemon feeds it and asks it (docs/accounting.md).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from disagg_exporter.accounting.assignment_history import AssignmentHistory
from disagg_exporter.accounting.committing import NodeTokens, collect, commit, drop_read, watermarks
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.devices.removed_devices import RemovedDevices
from disagg_exporter.accounting.engine_account import EngineLedger
from disagg_exporter.accounting.fast_gauges import busy_gpus, window_ns
from disagg_exporter.accounting.intervals.activity import mean_activity
from disagg_exporter.accounting.intervals.intervals import leaving
from disagg_exporter.accounting.intervals.rules import SECOND_NS, Rules
from disagg_exporter.accounting.resuming import resumed_devices
from disagg_exporter.accounting.returning import AwaitedEngines
from disagg_exporter.accounting.splits import RankCostModels
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.model import (
    Assignment,
    BusyGpus,
    Device,
    DeviceAccount,
    DeviceSweep,
    EngineAccount,
    EngineState,
    Method,
    Step,
    StreamKey,
    TokenAccount,
    WorkWindow,
)
from disagg_exporter.model.checkpoints import LedgerCheckpoint
from disagg_exporter.steps.rows import Rows, totals_of


class Ledger:
    """One node's accounting. Every method takes the time it needs as an argument."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._devices: dict[str, DeviceLedger] = {}
        self._engines: dict[str, EngineLedger] = {}
        self._tokens = NodeTokens()
        self._removed = RemovedDevices()
        self.awaited_engines = AwaitedEngines()

    def checkpoint(self, now_ns: int) -> LedgerCheckpoint:
        """Return all that the next daemon has to know to go on where this one is now."""
        read_ns = watermarks(self._devices.values())
        return LedgerCheckpoint(
            now_ns,
            devices=tuple(ledger.checkpoint() for ledger in self._devices.values()),
            engines=tuple(b.checkpoint(read_ns.get(name, ())) for name, b in self._engines.items()),
            tokens=self._tokens.checkpoint(),
            removed=self._removed.checkpoint(),
        )

    def resume(
        self, before: LedgerCheckpoint, devices: Iterable[Device], pids: Container[int], now_ns: int
    ) -> None:
        """Go on where the daemon before was, before anything else is told.

        `devices` are the node's now, `pids` those of the engines' processes that are still there.
        """
        self._tokens.resume(before.tokens)
        self._removed.resume(before.removed)
        self._devices, removed = resumed_devices(before, devices, now_ns, self._rules)
        for ledger in removed:
            self._removed.take(ledger.account())
        for each in before.engines:
            engine = each.assignment.engine
            books = self._engines[engine] = EngineLedger.resumed(each, now_ns, self._rules)
            books.cut_ns += sum(ledger.debts.lost_ns(engine) for ledger in removed)
            if books.method is not Method.STEPS:
                self._end_lanes(books, before.taken_ns)
            self.awaited_engines.expect(engine, now_ns)
            if books.assignment.pids and not any(pid in pids for pid in books.assignment.pids):
                self.give_up(engine)

    def give_up(self, engine: str) -> None:
        """Take that the process of an engine of the daemon before is gone since we came."""
        since_ns = self.awaited_engines.drop(engine)
        last = self._engines[engine].assignment
        if since_ns is not None and last.state is not EngineState.GONE:
            self.assign(replace(last, state=EngineState.GONE, since_ns=since_ns))

    @property
    def has_engines(self) -> bool:
        """Whether any engine is there."""
        return any(b.assignment.state is not EngineState.GONE for b in self._engines.values())

    def add_device(self, device: Device, start_ns: int) -> None:
        """Start to account for a device; one that is known already goes on as it was."""
        self._devices.setdefault(device.gpu, DeviceLedger(device, start_ns, self._rules))

    def is_pseudo(self, gpu: str) -> bool:
        """Say whether a device stands for an engine on a host without GPUs."""
        return gpu in self._devices and self._devices[gpu].device.is_pseudo

    def assign(self, assignment: Assignment) -> None:
        """Take an engine's role, devices and state from `since_ns` on; GONE is its death."""
        books = self._engines.get(assignment.engine)
        if books is not None:
            if self.awaited_engines.finds(books.assignment, assignment):
                return
            gone_ns = self.awaited_engines.come(books.assignment, assignment)
            if gone_ns is not None:
                gone = EngineState.GONE
                self.assign(replace(books.assignment, state=gone, since_ns=gone_ns))
        if books is None:
            books = self._engines[assignment.engine] = EngineLedger(
                assignment, AssignmentHistory(assignment)
            )
        books.owners.change(assignment)
        left = set(books.assignment.devices) - set(assignment.devices)
        if not books.lanes and (left or assignment.model_name != books.assignment.model_name):
            books.splits = RankCostModels()
        books.assignment = assignment
        for gpu in (*assignment.devices, *left):
            if gpu in self._devices:
                self._devices[gpu].assign(leaving(assignment) if gpu in left else assignment)
        if assignment.state is EngineState.GONE:
            self._end_lanes(books, assignment.since_ns)
            books.told.end()

    def costs(self, engine: str) -> Mapping[int, LearnedCost]:
        """Return what is known of an engine's step costs, by rank."""
        books = self._engines.get(engine)
        return {} if books is None else books.splits.save()

    def learned_steps(self, engine: str) -> int:
        """Return how many steps an engine's costs were learned from."""
        books = self._engines.get(engine)
        return 0 if books is None else books.splits.steps

    def restore_costs(self, engine: str, saved: Mapping[int, LearnedCost]) -> None:
        """Go on with what was saved of an assigned engine's costs, instead of what is known."""
        if engine in self._engines:
            self._engines[engine].splits.restore(saved)

    def use(self, engine: str, method: Method, now_ns: int) -> None:
        """From now on book an engine by another source; what the one before told stays booked."""
        books = self._engines.get(engine)
        if books is None or books.method is method:
            return
        if books.method.by_step != method.by_step:
            self._end_lanes(books, now_ns)
        books.method = method

    def heartbeat(
        self,
        key: StreamKey,
        said: Step,
        *,
        overlapped: bool,
        held_totals: bool = False,
        now_ns: int,
    ) -> None:
        """Take a hello or heartbeat of an engine's stream."""
        lane = self._step_lane(key)
        if lane is not None:
            self._engines[key.engine].told.take(key, said.totals)
            lane.heartbeat(key, said, overlapped=overlapped, held_totals=held_totals, now_ns=now_ns)

    def step(self, key: StreamKey, step: Step, *, now_ns: int) -> None:
        """Take one step record; one of an engine that is not assigned is nobody's and ignored."""
        lane = self._step_lane(key)
        if lane is not None:
            self._engines[key.engine].told.take(key, step.totals)
            lane.add(key, step, now_ns=now_ns)

    def steps(self, key: StreamKey, rows: Rows, *, now_ns: int) -> None:
        """Take some step records of a stream, in the order in which they came."""
        lane = self._step_lane(key)
        if lane is not None and len(rows):
            told = self._engines[key.engine].told
            if not told.has(key):
                told.take(key, totals_of(rows[0]))
            told.take(key, totals_of(rows[-1]))
            lane.add(key, rows, now_ns=now_ns)

    def window(self, engine: str, window: WorkWindow) -> None:
        """Take what an engine did over a stretch; ignored unless that source is in use."""
        books = self._engines.get(engine)
        if books is None or books.assignment.state is EngineState.GONE:
            return
        if books.method is not window.method or window.method.by_step:
            return
        devices = self._ledgers(books.assignment)
        lane = books.window_lane(window.start_ns, devices, self._rules)
        samples = [d.activity(lane.mark_ns, window.end_ns) for d in devices]
        lane.take(window, mean_activity(samples))

    def active_seconds(self, engine: str, after_ns: int, until_ns: int) -> float:
        """Return how long an engine's devices were active, by the samples that end in between."""
        books = self._engines.get(engine)
        devices = self._ledgers(books.assignment) if books is not None else []
        samples = mean_activity([device.activity(after_ns, until_ns) for device in devices])
        return sum((s.end_ns - s.start_ns) * s.busy_ratio for s in samples) / SECOND_NS

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
                collect(books, self._devices, self._tokens)
        for ledger in self._devices.values():
            commit(ledger, self._engines, now_ns, self._rules)
        drop_read(self._devices.values(), self._engines)

    def device_accounts(self) -> tuple[DeviceAccount, ...]:
        """Return the committed time of every device."""
        return tuple(ledger.account() for ledger in self._devices.values())

    def removed_accounts(self) -> tuple[DeviceAccount, ...]:
        """Return what was committed of devices that are no more, one account a device name."""
        return self._removed.accounts()

    def engine_accounts(self, now_ns: int) -> tuple[EngineAccount, ...]:
        """Return what every engine has used, and the state its last record told."""
        self._look()
        debts = [ledger.debts for ledger in self._devices.values()]
        return tuple(
            books.account(
                now_ns, self._ledgers(books.assignment), sum(each.cut_ns[name] for each in debts)
            )
            for name, books in self._engines.items()
        )

    def token_accounts(self) -> tuple[TokenAccount, ...]:
        """Return the node's tokens by phase, those of engines long gone included."""
        return self._tokens.accounts()

    def fast_gauges(self, now_ns: int) -> tuple[tuple[BusyGpus, ...], float]:
        """Return the provisional fast gauges (A8) and their window in seconds."""
        self._look()
        working = {
            name: books.lanes
            for name, books in self._engines.items()
            if books.assignment.state is not EngineState.GONE
        }
        lanes = (lane for of_engine in working.values() for lane in of_engine.values())
        width_ns = window_ns(lanes, now_ns)
        gpus = busy_gpus(working, self._devices.values(), now_ns, width_ns)
        return gpus, width_ns / SECOND_NS

    def forget(self, engine: str) -> None:
        """Drop an engine that is gone for good, and the pseudo-device that stood for it.

        GPUs keep what it used, and so do the node's sums.
        """
        books = self._engines.pop(engine, None)
        self.awaited_engines.drop(engine)
        for ledger in self._ledgers(books.assignment) if books else ():
            if ledger.device.is_pseudo:
                self._removed.take(self._devices.pop(ledger.device.gpu).account())
        for ledger in self._devices.values():
            ledger.debts.forget(engine)

    def forget_model(self, model_name: str) -> None:
        """Let a model's series end; one that is served again is counted from zero.

        What it used stays in the sums over all models of each device.
        """
        if all(books.assignment.model_name != model_name for books in self._engines.values()):
            for ledger in self._devices.values():
                ledger.forget_model(model_name)
            self._removed.forget_model(model_name)
            self._tokens.forget_model(model_name)

    def _look(self) -> None:
        """Let every lane look at what has come."""
        for books in self._engines.values():
            for lane in books.lanes.values():
                lane.look()

    def _step_lane(self, key: StreamKey) -> StepTimeline | None:
        books = self._engines.get(key.engine)
        if books is None or books.assignment.state is EngineState.GONE or not books.method.by_step:
            return None
        if not books.told.knows(key):
            return None
        devices = self._ledgers(books.assignment)
        return books.step_lane(key.engine_index, devices, self._rules)

    def _end_lanes(self, books: EngineLedger, t_ns: int) -> None:
        for lane in books.lanes.values():
            lane.end(t_ns)
        collect(books, self._devices, self._tokens)
        books.ended.extend(books.lanes.items())
        books.lanes.clear()

    def _ledgers(self, assignment: Assignment) -> list[DeviceLedger]:
        return [self._devices[gpu] for gpu in assignment.devices if gpu in self._devices]
