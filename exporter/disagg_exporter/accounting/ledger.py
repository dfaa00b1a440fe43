"""A node's accounting: turns messages, readings and assignments into seconds by phase.

Pure: nothing here reads a clock or a driver; the daemon passes all input (docs/accounting.md).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from disagg_exporter.accounting.devices.assignments import leaving
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.devices.removed_devices import RemovedDevices
from disagg_exporter.accounting.engine_account import (
    EngineLedger,
    commit,
    drop_read,
)
from disagg_exporter.accounting.engine_reports import AssignmentHistory, NodeTokens
from disagg_exporter.accounting.engine_view import shown_accounts
from disagg_exporter.accounting.fast_gauges import provisional_gauges
from disagg_exporter.accounting.intervals.activity import mean_activity
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.resuming import (
    AwaitedEngines,
    engine_checkpoints,
    resumed_devices,
    resumed_engine,
)
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.model import (
    SECOND_NS,
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
from disagg_exporter.steps.rows import Rows


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
        """Return the state from which the next daemon continues."""
        return LedgerCheckpoint(
            now_ns,
            devices=tuple(device.checkpoint() for device in self._devices.values()),
            engines=engine_checkpoints(self._engines.values(), self._devices.values()),
            tokens=self._tokens.accounts(),
            removed=self._removed.checkpoint(),
        )

    def resume(
        self, before: LedgerCheckpoint, devices: Iterable[Device], pids: Container[int], now_ns: int
    ) -> None:
        """Continue from the previous daemon's checkpoint; must be the first call.

        `devices` are the node's present devices, `pids` the engines' processes that still exist.
        """
        self._tokens.resume(before.tokens)
        self._removed.resume(before.removed)
        self._devices, removed = resumed_devices(before, devices, now_ns, self._rules)
        for device in removed:
            self._removed.add(device.account())
        for saved in before.engines:
            name = saved.assignment.engine
            engine = self._engines[name] = resumed_engine(saved, now_ns, self._rules)
            for carry_over in (device.carry_over for device in removed):
                engine.cut_ns += carry_over.cut_ns[name] + carry_over.deferred_ns(name)
            if engine.method is not Method.STEPS:
                self._end_timelines(engine, before.taken_ns)
            self.awaited_engines.expect(name, now_ns)
            if engine.assignment.pids and not any(pid in pids for pid in engine.assignment.pids):
                self.give_up(name)

    def give_up(self, engine: str) -> None:
        """Mark an engine of the previous daemon as gone since the start of this one."""
        since_ns = self.awaited_engines.drop(engine)
        if since_ns is not None and not self._engines[engine].is_gone:
            last = self._engines[engine].assignment
            self.assign(replace(last, state=EngineState.GONE, since_ns=since_ns))

    @property
    def has_engines(self) -> bool:
        """Whether any engine exists."""
        return not all(engine.is_gone for engine in self._engines.values())

    def add_device(self, device: Device, start_ns: int) -> None:
        """Start accounting for a device; a known device continues unchanged."""
        self._devices.setdefault(device.gpu, DeviceLedger(device, start_ns, self._rules))

    def is_pseudo(self, gpu: str) -> bool:
        """Return whether a device stands for an engine on a host without GPUs."""
        return gpu in self._devices and self._devices[gpu].device.is_pseudo

    def assign(self, assignment: Assignment) -> None:
        """Set an engine's role, devices and state from `since_ns` on; GONE is its death."""
        engine = self._engines.get(assignment.engine)
        if engine is None:
            engine = EngineLedger(assignment, AssignmentHistory(assignment))
            self._engines[assignment.engine] = engine
        else:
            if self.awaited_engines.is_adopted(engine.assignment, assignment):
                return
            gone_ns = self.awaited_engines.arrive(engine.assignment, assignment)
            if gone_ns is not None:
                self.assign(replace(engine.assignment, state=EngineState.GONE, since_ns=gone_ns))
        engine.history.add(assignment)
        left = set(engine.assignment.devices) - set(assignment.devices)
        moved = left or assignment.model_name != engine.assignment.model_name
        if moved and not engine.timelines:
            engine.forget_costs()
        engine.assignment = assignment
        for gpu in (*assignment.devices, *left):
            if gpu in self._devices:
                self._devices[gpu].assign(leaving(assignment) if gpu in left else assignment)
        if engine.is_gone:
            self._end_timelines(engine, assignment.since_ns)
            engine.reported.end()

    def costs(self, engine: str) -> Mapping[int, LearnedCost]:
        """Return the learned step costs of an engine, by rank."""
        known = self._engines.get(engine)
        return {} if known is None else known.costs.save()

    def learned_steps(self, engine: str) -> int:
        """Return the number of steps that an engine's costs were learned from."""
        known = self._engines.get(engine)
        return 0 if known is None else known.costs.steps

    def restore_costs(self, engine: str, saved: Mapping[int, LearnedCost]) -> None:
        """Replace the learned costs of an assigned engine by saved ones."""
        if engine in self._engines:
            self._engines[engine].costs.restore(saved)

    def use(self, engine: str, method: Method, now_ns: int) -> None:
        """Account for an engine from another source from now on; earlier time stays."""
        known = self._engines.get(engine)
        if known is None or known.method is method:
            return
        if known.method.by_step != method.by_step:
            self._end_timelines(known, now_ns)
        known.method = method

    def heartbeat(
        self,
        key: StreamKey,
        message: Step,
        *,
        overlapped: bool,
        held_totals: bool = False,
        in_flight: int | None = None,
        now_ns: int,
    ) -> None:
        """Ingest a hello or heartbeat; `in_flight` are the requests that its process awaits."""
        timeline = self._step_timeline(key)
        if timeline is not None:
            engine = self._engines[key.engine]
            engine.reported.add(key, message.totals)
            beat = message._replace(t_ns=min(message.t_ns, now_ns))
            devices = self._devices_of(engine)
            timeline.awaited = engine.awaits_step(key, beat, in_flight, devices, self._rules)
            timeline.heartbeat(
                key, beat, overlapped=overlapped, held_totals=held_totals, now_ns=now_ns
            )

    def step(self, key: StreamKey, step: Step, *, now_ns: int) -> None:
        """Ingest one step record; those of unassigned engines are ignored."""
        timeline = self._step_timeline(key)
        if timeline is not None:
            self._engines[key.engine].reported.add(key, step.totals)
            timeline.add(key, step, now_ns=now_ns)

    def steps(self, key: StreamKey, rows: Rows, *, now_ns: int) -> None:
        """Ingest step records of a stream, in order of arrival."""
        timeline = self._step_timeline(key)
        if timeline is not None and len(rows):
            self._engines[key.engine].reported.add_rows(key, rows)
            timeline.add(key, rows, now_ns=now_ns)

    def window(self, engine: str, window: WorkWindow) -> None:
        """Ingest a window of an engine's work; ignored unless its source is in use."""
        known = self._engines.get(engine)
        if known is None or known.is_gone:
            return
        if known.method is not window.method or window.method.by_step:
            return
        devices = self._devices_of(known)
        timeline = known.window_timeline(window.start_ns, devices, self._rules)
        samples = [each.activity.between(timeline.mark_ns, window.end_ns) for each in devices]
        timeline.add(window, mean_activity(samples))

    def active_seconds(self, engine: str, after_ns: int, until_ns: int) -> float:
        """Return the active time of an engine's devices, by samples ending in (after, until]."""
        devices = self._devices_of(self._engines.get(engine))
        samples = mean_activity([each.activity.between(after_ns, until_ns) for each in devices])
        return sum((s.end_ns - s.start_ns) * s.busy_ratio for s in samples) / SECOND_NS

    def read(self, sweep: DeviceSweep) -> None:
        """Ingest one round of device readings."""
        for reading in sweep.readings:
            if reading.gpu in self._devices:
                self._devices[reading.gpu].read(reading)

    def advance(self, now_ns: int) -> None:
        """Commit everything that can no longer change."""
        for engine in self._engines.values():
            for timeline in engine.timelines.values():  # none if it is gone
                timeline.advance(now_ns)
            engine.collect(self._devices, self._tokens)
        for device in self._devices.values():
            commit(device, self._engines, self._tokens, now_ns, self._rules)
        drop_read(self._devices.values(), self._engines)

    def device_accounts(self) -> tuple[DeviceAccount, ...]:
        """Return the committed time of every device."""
        return tuple(device.account() for device in self._devices.values())

    def removed_accounts(self) -> tuple[DeviceAccount, ...]:
        """Return the committed time of removed devices, one account per device name."""
        return self._removed.accounts()

    def engine_accounts(self, now_ns: int) -> tuple[EngineAccount, ...]:
        """Return what every engine has used, and the state in its last record."""
        self._ingest()
        return shown_accounts(self._engines, self._devices, now_ns)

    def token_accounts(self) -> tuple[TokenAccount, ...]:
        """Return the node's tokens by phase, including those of engines long gone."""
        return self._tokens.accounts()

    def fast_gauges(self, now_ns: int) -> tuple[tuple[BusyGpus, ...], float]:
        """Return the provisional fast gauges (A8) and their window in seconds."""
        self._ingest()
        return provisional_gauges(self._engines, self._devices.values(), now_ns)

    def forget(self, engine: str) -> None:
        """Drop an engine that is gone for good, and its pseudo-device.

        What it used stays in the sums of its GPUs and of the node.
        """
        self.awaited_engines.drop(engine)
        for device in self._devices_of(self._engines.pop(engine, None)):
            if device.device.is_pseudo:
                self._removed.add(self._devices.pop(device.device.gpu).account())
        for device in self._devices.values():
            device.carry_over.forget(engine)

    def forget_model(self, model_name: str) -> None:
        """End a model's series; if it is served again, they restart from zero.

        What it used stays in each device's sums over all models. Nothing is dropped while it is
        served anywhere: a node's sum that lost some devices' part would fall instead of ending.
        """
        served = (e.assignment.model_name == model_name for e in self._engines.values())
        if any(served) or any(device.serves(model_name) for device in self._devices.values()):
            return
        for device in self._devices.values():
            device.forget_model(model_name)
        self._removed.forget_model(model_name)
        self._tokens.forget_model(model_name)

    def _ingest(self) -> None:
        for engine in self._engines.values():
            for timeline in engine.timelines.values():
                timeline.ingest()

    def _step_timeline(self, key: StreamKey) -> StepTimeline | None:
        engine = self._engines.get(key.engine)
        if engine is None or engine.is_gone or not engine.method.by_step:
            return None
        if not engine.reported.has_room(key):
            return None
        return engine.step_timeline(key.engine_index, self._devices_of(engine), self._rules)

    def _end_timelines(self, engine: EngineLedger, t_ns: int) -> None:
        for timeline in engine.timelines.values():
            timeline.end(t_ns)
        engine.collect(self._devices, self._tokens)
        engine.ended.extend(engine.timelines.items())
        engine.timelines.clear()

    def _devices_of(self, engine: EngineLedger | None) -> list[DeviceLedger]:
        gpus = engine.assignment.devices if engine is not None else ()
        return [self._devices[gpu] for gpu in gpus if gpu in self._devices]
