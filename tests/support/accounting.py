"""A ledger with short calls: seconds in, seconds out, one engine unless specified otherwise."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from disagg_cluster.continuity.checkpoint_text import Checkpoint, decode, encode
from disagg_cluster.supervisor.journal.journal_text import Where
from disagg_exporter.accounting import Ledger, Rules
from disagg_exporter.model import (
    SECOND_NS,
    Assignment,
    Device,
    DeviceAccount,
    DeviceReading,
    DeviceSweep,
    EngineAccount,
    EngineState,
    Method,
    Phase,
    Reason,
    Role,
    Step,
    StepTotals,
    StreamKey,
    Use,
    WorkWindow,
)
from disagg_exporter.steps.rows import kind_of, tokens_of


def ns(seconds: float) -> int:
    """Return whole nanoseconds."""
    return round(seconds * SECOND_NS)


class StepReporter:
    """Writes an engine's records as its plugin would: numbered, with running totals."""

    def __init__(self, engine: str = "e", pid: int = 1, incarnation: int = 1, index: int = 0):
        self.key = StreamKey(engine, pid, incarnation, index)
        self._sequence = 0
        self._steps, self._elapsed = [0] * 4, [0] * 4
        self._tokens = [0, 0]

    def step(self, t: float, elapsed: float, **counts: object) -> Step:
        """Return the record of a step that was reported at `t` and took `elapsed` seconds."""
        self._sequence += 1
        bare = Step(ns(t), ns(elapsed), self._sequence, **counts)  # type: ignore[arg-type]
        kind = kind_of(bare)
        self._steps[kind] += 1
        self._elapsed[kind] += bare.elapsed_ns
        self._tokens = [a + b for a, b in zip(self._tokens, tokens_of(bare, kind), strict=True)]
        return Step(ns(t), ns(elapsed), self._sequence, totals=self._totals(), **counts)  # type: ignore[arg-type]

    def prefill(self, t: float, elapsed: float, tokens: int = 100, **counts: object) -> Step:
        """Return the record of a step that prefilled one prompt."""
        return self.step(
            t, elapsed, context_requests=1, context_tokens=tokens, computed_tokens=tokens, **counts
        )

    def decode(self, t: float, elapsed: float, tokens: int = 1, **counts: object) -> Step:
        """Return the record of a step that generated `tokens` tokens."""
        return self.step(t, elapsed, generation_requests=tokens, generation_tokens=tokens, **counts)

    def beat(self, t: float) -> Step:
        """Return a heartbeat: no work, the sequence and totals reached."""
        return Step(ns(t), 0, self._sequence, totals=self._totals())

    def seconds(self) -> dict[Phase, float]:
        """Return the time of its context and of its generation steps so far."""
        return {Phase.PREFILL: self._elapsed[0] / 1e9, Phase.DECODE: self._elapsed[1] / 1e9}

    def _totals(self) -> StepTotals:
        steps, elapsed = self._steps, self._elapsed
        return StepTotals(
            (steps[0], steps[1], steps[2], steps[3]),
            (elapsed[0], elapsed[1], elapsed[2], elapsed[3]),
            *self._tokens,
        )


class NodeAccounting:
    """A ledger whose devices start at 0 and whose engines are ready from 0 on."""

    def __init__(self, gpus: int = 1, rules: Rules | None = None, weight: float = 1.0) -> None:
        self.ledger = Ledger(rules)
        self._joules: defaultdict[str, float] = defaultdict(float)
        self.gpus = [f"g{i}" for i in range(gpus)]
        for index, gpu in enumerate(self.gpus):
            self.ledger.add_device(Device(gpu, index, "H100", f"nvidia{index}", weight=weight), 0)

    def engine(
        self,
        name: str = "e",
        role: Role = Role.MIXED,
        gpus: list[str] | None = None,
        state: EngineState = EngineState.READY,
        since: float = 0.0,
        model: str = "m",
        ranks: int = 1,
        pids: tuple[int, ...] = (),
    ) -> None:
        """Assign an engine to devices (all of them unless named)."""
        devices = tuple(self.gpus if gpus is None else gpus)
        assignment = Assignment(name, role, devices, state, ns(since), pids, model, ranks=ranks)
        self.ledger.assign(assignment)

    def successor(
        self,
        written: float,
        back: float,
        pids: Container[int] = range(100),
        devices: Iterable[Device] | None = None,
    ) -> NodeAccounting:
        """Return the accounting of a daemon that starts `back` after this one's last checkpoint.

        It has read that checkpoint, as text. `pids` are the remaining processes of the engines.
        """
        here = Where(boot_id="boot", pid_namespace="pids")
        text = encode(here, Checkpoint(self.ledger.checkpoint(ns(written))))
        after = NodeAccounting(gpus=0)
        after.gpus, after._joules = self.gpus, self._joules
        if devices is None:
            devices = [account.device for account in self.ledger.device_accounts()]
        after.ledger.resume(decode(text, here, ns(back)).ledger, devices, pids, ns(back))
        return after

    def step(self, reporter: StepReporter, step: Step, now: float | None = None) -> None:
        """Deliver a record, at its own time unless specified otherwise."""
        self.ledger.step(reporter.key, step, now_ns=step.t_ns if now is None else ns(now))

    def beat(
        self,
        reporter: StepReporter,
        t: float,
        overlapped: bool = False,
        in_flight: int | None = None,
    ) -> None:
        """Deliver a heartbeat; if the plugin reports them, with its requests in flight."""
        self.ledger.heartbeat(
            reporter.key,
            reporter.beat(t),
            overlapped=overlapped,
            in_flight=in_flight,
            now_ns=ns(t),
        )

    def use(self, method: Method, t: float, name: str = "e") -> None:
        """Account for an engine by another source from `t` on."""
        self.ledger.use(name, method, ns(t))

    def window(
        self,
        start: float,
        end: float,
        share: float = 1.0,
        busy: float | None = None,
        name: str = "e",
        method: Method = Method.PAGE,
        **values: Any,
    ) -> None:
        """Deliver a window: busy while the devices were active, unless specified otherwise."""
        busy_ns = None if busy is None else ns(busy)
        window = WorkWindow(ns(start), ns(end), method, share, busy_ns, **values)
        self.ledger.window(name, window)

    def activity(self, start: float, end: float, ratio: float, gpu: str = "g0") -> None:
        """Deliver device readings every 0.1 s over a stretch."""
        for tick in range(round(start * 10), round(end * 10) + 1):
            reading = DeviceReading(gpu, ns(tick / 10), busy_ratio=ratio)
            self.ledger.read(DeviceSweep(reading.t_ns, (reading,)))

    def tell(self, t: float, gpu: str = "g0", **values: Any) -> None:
        """Deliver one reading of any values that a device may report."""
        reading = DeviceReading(gpu, ns(t), **values)
        self.ledger.read(DeviceSweep(reading.t_ns, (reading,)))

    def power(self, start: float, end: float, watts: float, gpu: str = "g0") -> None:
        """Deliver energy and power every 0.1 s over a stretch; the device's total continues."""
        for tick in range(round(start * 10), round(end * 10) + 1):
            if tick > round(start * 10):
                self._joules[gpu] += watts / 10
            total_joules = round(self._joules[gpu], 6)
            self.tell(tick / 10, gpu, energy_joules=total_joules, power_watts=watts)

    def advance(self, now: float) -> None:
        """Commit what can be committed at `now`."""
        self.ledger.advance(ns(now))

    def seconds(self, gpu: str = "g0") -> dict[str, float]:
        """Return a device's seconds by use, without the uses that had none."""
        cells = self._account(gpu).cells
        sums: defaultdict[str, float] = defaultdict(float)
        for cell, length in cells.items():
            sums[str(cell.use)] += length
        return {use: round(length, 6) for use, length in sums.items() if length}

    def reasons(self, use: Use, gpu: str = "g0") -> dict[Reason, float]:
        """Return a device's seconds of one use by reason."""
        sums: defaultdict[Reason, float] = defaultdict(float)
        for cell, length in self._account(gpu).cells.items():
            if cell.use is use:
                sums[cell.reason] += length
        return {reason: round(length, 6) for reason, length in sums.items()}

    def by_role(self, role: Role, gpu: str = "g0") -> dict[str, float]:
        """Return a device's seconds under one role, by use."""
        sums: defaultdict[str, float] = defaultdict(float)
        for cell, length in self._account(gpu).cells.items():
            if cell.role is role:
                sums[str(cell.use)] += length
        return {use: round(length, 6) for use, length in sums.items()}

    def joules(self, gpu: str = "g0") -> dict[str, float] | None:
        """Return a device's energy by use to the millijoule, without the uses that had none."""
        energy = self._account(gpu).microjoules
        if energy is None:
            return None
        sums: defaultdict[str, float] = defaultdict(float)
        for cell, microjoules in energy.items():
            sums[str(cell.use)] += microjoules / 1e6
        return {use: round(joules, 3) for use, joules in sums.items() if joules}

    def watermark(self, gpu: str = "g0") -> float:
        """Return the time up to which a device is accounted for."""
        return self._account(gpu).watermark_ns / SECOND_NS

    def unbalanced(self) -> list[str]:
        """Return the devices whose uses do not sum to slices × (watermark − start)."""
        wrong = []
        for account in self.ledger.device_accounts():
            wall = (account.watermark_ns - account.start_ns) * account.device.slices
            if sum(account.slice_ns.values()) != wall:
                wrong.append(f"{account.device.gpu}: {dict(account.slice_ns)} ≠ {wall}")
        return wrong

    def engine_seconds(self, now: float, name: str = "e") -> dict[Phase, float]:
        """Return an engine's GPU-seconds by phase."""
        sums = dict.fromkeys(Phase, 0.0)
        for (_, phase), length in self._engine(name, now).gpu_seconds.items():
            sums[phase] += length
        return {phase: round(length, 6) for phase, length in sums.items()}

    def owed(self, now: float, name: str = "e") -> float:
        """Return an engine's step time that is carried over."""
        return round(self._engine(name, now).carry_over_seconds, 6)

    def cut(self, now: float, name: str = "e") -> float:
        """Return the step time of an engine that was cut."""
        return round(self._engine(name, now).cut_seconds, 6)

    def tokens(self, now: float, name: str = "e") -> dict[Phase, int]:
        """Return an engine's tokens by phase."""
        sums = dict.fromkeys(Phase, 0)
        for (_, phase), count in self._engine(name, now).phase_tokens.items():
            sums[phase] += count
        return sums

    def lost(self, now: float, name: str = "e") -> int:
        """Return how many records never arrived."""
        return self._engine(name, now).lost_records

    def late(self, now: float, name: str = "e") -> int:
        """Return how many records arrived twice or too late."""
        return self._engine(name, now).late_records

    def _account(self, gpu: str) -> DeviceAccount:
        return next(a for a in self.ledger.device_accounts() if a.device.gpu == gpu)

    def _engine(self, name: str, now: float) -> EngineAccount:
        return next(a for a in self.ledger.engine_accounts(ns(now)) if a.engine == name)


def captured_steps(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a recorded step stream, header left out."""
    with gzip.open(path, "rt") as lines:
        return [row for line in lines if "it" in (row := json.loads(line)) and row["it"]]
