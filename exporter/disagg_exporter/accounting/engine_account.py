"""What one engine has used: its lanes, and the sums that outlive its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.accounting.assignment_history import AssignmentHistory
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.intervals.rules import SECOND_NS, Rules
from disagg_exporter.accounting.intervals.timeline import Pieces
from disagg_exporter.accounting.reported_totals import ReportedTotals
from disagg_exporter.accounting.splits import RankCostModels
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.accounting.timelines.window_timeline import WindowTimeline
from disagg_exporter.model import (
    SLICE_NS_PER_GPU_SECOND,
    Assignment,
    EngineAccount,
    Method,
    Phase,
    Role,
    Split,
    StreamKey,
)
from disagg_exporter.model.checkpoints import EngineCheckpoint


@dataclass(slots=True)
class EngineLedger:
    """What one engine has used; it outlives the engine's processes, as counters must.

    `cut_ns` is what was cut on devices that are no more; the others count their own.
    """

    assignment: Assignment
    owners: AssignmentHistory
    method: Method = Method.STEPS
    lanes: dict[int, StepTimeline | WindowTimeline] = field(default_factory=dict)
    ended: list[tuple[int, StepTimeline | WindowTimeline]] = field(default_factory=list)
    told: ReportedTotals = field(default_factory=ReportedTotals)
    splits: RankCostModels = field(default_factory=RankCostModels)
    gpu_slice_ns: Counter[tuple[Role, Phase]] = field(default_factory=Counter)
    tokens: Counter[tuple[Role, Phase]] = field(default_factory=Counter)
    lost_records: int = 0
    late_records: int = 0
    cut_ns: int = 0

    def checkpoint(self, read_ns: Collection[int]) -> EngineCheckpoint:
        """Return what it has used; `read_ns`: up to where its devices have read its timelines."""
        stepwise = {
            rank: lane for rank, lane in self.lanes.items() if isinstance(lane, StepTimeline)
        }
        others = [(rank, lane) for rank, lane in self.lanes.items() if rank not in stepwise]
        return EngineCheckpoint(
            self.assignment,
            self.owners.checkpoint(),
            self.method,
            live=tuple(lane.checkpoint(rank, read_ns) for rank, lane in stepwise.items()),
            ended=tuple(lane.checkpoint(rank, read_ns) for rank, lane in (*self.ended, *others)),
            reported=self.told.totals,
            gpu_slice_ns=tuple((*key, ns) for key, ns in self.gpu_slice_ns.items()),
            tokens=tuple((*key, count) for key, count in self.tokens.items()),
            lost_records=self.lost_records,
            late_records=self.late_records,
            cut_ns=self.cut_ns,
        )

    @classmethod
    def resumed(cls, before: EngineCheckpoint, resumed_ns: int, rules: Rules) -> EngineLedger:
        """Return the books of a checkpoint; nothing is known of timelines that only pages told."""
        engine = before.assignment.engine
        books = cls(before.assignment, AssignmentHistory.resumed(before.history), before.method)
        for lane in before.live:
            split = books.splits.begin(lane.engine_index)
            resumed = StepTimeline.resumed(engine, lane, resumed_ns, rules, split)
            books.lanes[lane.engine_index] = resumed
        for lane in before.ended:
            books.ended.append(
                (lane.engine_index, StepTimeline.resumed(engine, lane, resumed_ns, rules))
            )
        # The streams of another source are numbered by the daemon that received them.
        streams = {
            StreamKey(engine, stream.pid, stream.incarnation, lane.engine_index): stream.totals
            for lane in (before.live if before.method is Method.STEPS else ())
            for stream in lane.streams
        }
        books.told.resume(before.reported, streams)
        books.gpu_slice_ns.update({(role, phase): ns for role, phase, ns in before.gpu_slice_ns})
        books.tokens.update({(role, phase): count for role, phase, count in before.tokens})
        books.lost_records, books.late_records = before.lost_records, before.late_records
        books.cut_ns = before.cut_ns
        return books

    def step_lane(self, rank: int, devices: Sequence[DeviceLedger], rules: Rules) -> StepTimeline:
        """Return where the steps of a rank go."""
        lane = self.lanes.get(rank)
        if not isinstance(lane, StepTimeline):
            split = self.splits.begin(rank)
            lane = StepTimeline(self._since(self.assignment.since_ns, devices), rules, split)
            self.lanes[rank] = lane
        return lane

    def window_lane(
        self, start_ns: int, devices: Sequence[DeviceLedger], rules: Rules
    ) -> WindowTimeline:
        """Return where its windows go, the first of which begins then."""
        lane = self.lanes.get(0)
        if not isinstance(lane, WindowTimeline):
            lane = self.lanes[0] = WindowTimeline(self._since(start_ns, devices), rules)
        return lane

    def between(self, start_ns: int, end_ns: int) -> list[tuple[int, Pieces]]:
        """Return what is frozen of the stretch, lane by lane, each with its rank."""
        lanes = (*self.ended, *self.lanes.items())
        return [(rank, lane.timeline.between(start_ns, end_ns)) for rank, lane in lanes]

    def drop_read(self, read_ns: int | None) -> None:
        """Forget the timeline up to where all devices have read it; all of it if none reads it."""
        for _, lane in (*self.ended, *self.lanes.items()):
            lane.timeline.forget_before(lane.mark_ns if read_ns is None else read_ns)
        # A lane ends one nanosecond after its engine, up to whose end devices read.
        self.ended = [
            (rank, lane)
            for rank, lane in self.ended
            if read_ns is not None and lane.mark_ns > read_ns + 1
        ]

    def account(self, now_ns: int, devices: Sequence[DeviceLedger], cut_ns: int) -> EngineAccount:
        """Return the books as shown; `cut_ns` is what was cut on devices that are there."""
        owner = self.assignment
        heard = {rank: lane for rank, lane in self.lanes.items() if lane.live(now_ns)}
        split, residual_ratio, fitted_steps = self._division(heard)
        last = [lane.last_step for lane in heard.values() if lane.last_step is not None]
        owed_ns = sum(device.debts.owed_ns(owner.engine) for device in devices)
        return EngineAccount(
            engine=owner.engine,
            role=owner.role,
            model_name=owner.model_name,
            engine_namespace=owner.engine_namespace,
            watermark_ns=min((lane.mark_ns for lane in self.lanes.values()), default=None),
            method=self.method if heard else Method.NONE,
            gpu_seconds={
                key: ns / SLICE_NS_PER_GPU_SECOND for key, ns in self.gpu_slice_ns.items()
            },
            phase_tokens=dict(self.tokens),
            reported=self.told.totals,
            cut_seconds=(self.cut_ns + cut_ns) / SECOND_NS,
            carry_over_seconds=owed_ns / SECOND_NS,
            lost_records=self.lost_records,
            late_records=self.late_records,
            running=sum(step.running for step in last) if last else None,
            waiting=sum(step.waiting for step in last) if last else None,
            deferred=sum(step.deferred for step in last) if last else None,
            kv_usage_ratio=max((step.kv_usage_ratio for step in last), default=None),
            split=split,
            residual_ratio=residual_ratio,
            fitted_steps=fitted_steps,
        )

    def _since(self, wanted_ns: int, devices: Sequence[DeviceLedger]) -> int:
        """Return from when on a new lane may book: nothing that is committed moves again."""
        marks = [device.watermark_ns for device in devices]
        ended = [lane.mark_ns for _, lane in self.ended]
        return max([wanted_ns, self.assignment.since_ns, *marks, *ended])

    def _division(
        self, heard: Mapping[int, StepTimeline | WindowTimeline]
    ) -> tuple[Split, float | None, int]:
        """Return how time is divided between phases, the residual, and what was learned from."""
        for lane in heard.values():
            if isinstance(lane, WindowTimeline) and lane.last_window is not None:
                told = lane.last_window
                return told.split, told.residual_ratio, told.fitted
        return self.splits.state(list(heard))
