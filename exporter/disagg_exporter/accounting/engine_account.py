"""Per-engine accounting: its timelines, and the sums that outlive its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.accounting.awaited_steps import AwaitedSteps, InFlight, any_active
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.engine_reports import AssignmentHistory, ReportedTotals
from disagg_exporter.accounting.intervals.rules import SECOND_NS, Rules
from disagg_exporter.accounting.intervals.timeline import Pieces
from disagg_exporter.accounting.rank_costs import CostKnowledge, RankCostModels
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.accounting.timelines.window_timeline import EngineTimeline, WindowTimeline
from disagg_exporter.model import (
    SLICE_NS_PER_GPU_SECOND,
    Assignment,
    EngineAccount,
    EngineState,
    ExpectedSteps,
    Interference,
    Method,
    Phase,
    Role,
    Step,
    StreamKey,
)
from disagg_exporter.model.checkpoints import EngineCheckpoint, TimelineCheckpoint


@dataclass(slots=True)
class EngineLedger:
    """What one engine has used; it outlives the engine's processes, as counters must.

    `cut_ns` is what was cut on devices that are no more; the others count their own. `loss_ns` and
    `gain_ns` are what mixing prefill and decode cost and saved, by all cost models it ever had, in
    the `known_ns` of step time of which they knew it; `expected` is what they expected of steps.
    """

    assignment: Assignment
    history: AssignmentHistory
    method: Method = Method.STEPS
    timelines: dict[int, EngineTimeline] = field(default_factory=dict)
    ended: list[tuple[int, EngineTimeline]] = field(default_factory=list)
    reported: ReportedTotals = field(default_factory=ReportedTotals)
    costs: RankCostModels = field(default_factory=RankCostModels)
    awaited_steps: AwaitedSteps = field(default_factory=AwaitedSteps)
    gpu_slice_ns: Counter[tuple[Role, Phase]] = field(default_factory=Counter)
    tokens: Counter[tuple[Role, Phase]] = field(default_factory=Counter)
    lost_records: int = 0
    late_records: int = 0
    cut_ns: int = 0
    loss_ns: int = 0
    gain_ns: int = 0
    known_ns: int = 0
    expected: ExpectedSteps = field(default_factory=ExpectedSteps)

    def count_costs(self) -> None:
        """Count what mixing has cost, and steps were to take, since this was called last."""
        loss_ns, gain_ns, known_ns = self.costs.take_interference_ns()
        self.loss_ns += loss_ns
        self.gain_ns += gain_ns
        self.known_ns += known_ns
        self.expected = self.expected.plus(self.costs.take_expected())

    def forget_costs(self) -> None:
        """Learn its costs anew: it serves another model, or on other devices."""
        self.count_costs()
        self.costs = RankCostModels()

    def reports_tokens(self, phase: Phase) -> bool:
        """Return whether tokens of a phase are reported by it, or by its leader."""
        return self.method is Method.FOLLOWER or any(
            count for (_, each), count in self.tokens.items() if each is phase
        )

    def checkpoint(self, read_ns: Collection[int]) -> EngineCheckpoint:
        """Return what it has used; `read_ns`: up to where its devices have read its timelines."""
        ended = [each.checkpoint(rank, read_ns) for rank, each in self.ended]
        live: list[TimelineCheckpoint] = []
        for rank, each in self.timelines.items():
            group = live if isinstance(each, StepTimeline) else ended
            group.append(each.checkpoint(rank, read_ns))
        return EngineCheckpoint(
            self.assignment,
            self.history.checkpoint(),
            self.method,
            live=tuple(live),
            ended=tuple(ended),
            reported=self.reported.totals,
            gpu_slice_ns=tuple((*key, ns) for key, ns in self.gpu_slice_ns.items()),
            tokens=tuple((*key, count) for key, count in self.tokens.items()),
            lost_records=self.lost_records,
            late_records=self.late_records,
            cut_ns=self.cut_ns,
            loss_ns=self.loss_ns,
            gain_ns=self.gain_ns,
            known_ns=self.known_ns,
            expected=self.expected,
        )

    @classmethod
    def resumed(cls, before: EngineCheckpoint, resumed_ns: int, rules: Rules) -> EngineLedger:
        """Return the accounting of a checkpoint; window timelines end with their daemon."""
        engine, history = before.assignment.engine, AssignmentHistory.resumed(before.history)
        ledger = cls(before.assignment, history, before.method)
        for saved in before.live:
            split = ledger.costs.begin(saved.engine_index)
            timeline = StepTimeline.resumed(engine, saved, resumed_ns, rules, split)
            ledger.timelines[saved.engine_index] = timeline
        for saved in before.ended:
            timeline = StepTimeline.resumed(engine, saved, resumed_ns, rules)
            ledger.ended.append((saved.engine_index, timeline))
        # The streams of another source are numbered by the daemon that received them.
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

    @property
    def is_gone(self) -> bool:
        """Whether its process is gone."""
        return self.assignment.state is EngineState.GONE

    def step_timeline(
        self, rank: int, devices: Sequence[DeviceLedger], rules: Rules
    ) -> StepTimeline:
        """Return the timeline of a rank's steps."""
        timeline = self.timelines.get(rank)
        if not isinstance(timeline, StepTimeline):
            start_ns = self._start_ns(self.assignment.since_ns, devices)
            timeline = StepTimeline(start_ns, rules, self.costs.begin(rank))
            self.timelines[rank] = timeline
        return timeline

    def window_timeline(
        self, start_ns: int, devices: Sequence[DeviceLedger], rules: Rules
    ) -> WindowTimeline:
        """Return the timeline of its windows, the first of which begins at `start_ns`."""
        timeline = self.timelines.get(0)
        if not isinstance(timeline, WindowTimeline):
            timeline = WindowTimeline(self._start_ns(start_ns, devices), rules)
            self.timelines[0] = timeline
        return timeline

    def awaits_step(
        self,
        key: StreamKey,
        beat: Step,
        in_flight: int | None,
        devices: Sequence[DeviceLedger],
        rules: Rules,
    ) -> bool:
        """Say at a heartbeat whether a step of its rank may be under way (A6).

        `in_flight` are the requests that its process waits for, None where it does not say.
        """
        ranks = [each for each in self.timelines.values() if isinstance(each, StepTimeline)]
        for each in ranks:
            each.ingest()
        own = self.timelines[key.engine_index]
        # After a daemon's death only the heartbeat reports its rank's last record.
        last = [each.last_step or (beat if each is own else None) for each in ranks]
        report = InFlight(
            key.pid,
            in_flight,
            sum(step.running + step.waiting + step.deferred for step in last if step is not None),
            max(each.last_record_ns for each in ranks),
            own.last_record_ns,
            resting=not any(each.work_pending for each in ranks),
            alone=len(ranks) == 1,
        )
        self.awaited_steps.ingest(beat.t_ns, report)
        if own.work_pending:
            return False
        gpus = self.assignment.of_rank(key.engine_index)
        held = [each for each in devices if each.device.gpu in gpus]

        def read_active() -> bool | None:
            return any_active(held, own.last_record_ns, beat.t_ns, rules)

        return self.awaited_steps.awaits(key.engine_index, beat.t_ns, report, read_active, rules)

    def between(self, start_ns: int, end_ns: int) -> list[tuple[int, Pieces]]:
        """Return the finalized pieces of a stretch, timeline by timeline, each with its rank."""
        timelines = (*self.ended, *self.timelines.items())
        return [(rank, each.timeline.between(start_ns, end_ns)) for rank, each in timelines]

    def drop_read(self, read_ns: int | None) -> None:
        """Drop the pieces up to where all devices have read them; all if none reads them."""
        for _, each in (*self.ended, *self.timelines.items()):
            each.timeline.drop_before(each.mark_ns if read_ns is None else read_ns)
        # A timeline ends one nanosecond after its engine, up to whose end devices read.
        self.ended = [
            (rank, each)
            for rank, each in self.ended
            if read_ns is not None and each.mark_ns > read_ns + 1
        ]

    def account(self, now_ns: int, devices: Sequence[DeviceLedger], cut_ns: int) -> EngineAccount:
        """Return the sums as shown; `cut_ns` is what was cut on devices that are there."""
        assignment = self.assignment
        live = {rank: each for rank, each in self.timelines.items() if each.is_live(now_ns)}
        known = self._cost_knowledge(live)
        windows = [each.last_window for each in live.values() if isinstance(each, WindowTimeline)]
        last = [each.last_step for each in live.values() if each.last_step is not None]
        deferred_ns = sum(each.carry_over.deferred_ns(assignment.engine) for each in devices)
        return EngineAccount(
            engine=assignment.engine,
            role=assignment.role,
            model_name=assignment.model_name,
            engine_namespace=assignment.engine_namespace,
            watermark_ns=min((each.mark_ns for each in self.timelines.values()), default=None),
            method=self.method if live else Method.NONE,
            gpu_seconds={
                key: ns / SLICE_NS_PER_GPU_SECOND for key, ns in self.gpu_slice_ns.items()
            },
            phase_tokens=dict(self.tokens),
            reported=self.reported.totals,
            cut_seconds=(self.cut_ns + cut_ns) / SECOND_NS,
            carry_over_seconds=deferred_ns / SECOND_NS,
            lost_records=self.lost_records,
            late_records=self.late_records,
            running=sum(step.running for step in last) if last else None,
            waiting=sum(step.waiting for step in last) if last else None,
            deferred=sum(step.deferred for step in last) if last else None,
            kv_usage_ratio=max((step.kv_usage_ratio for step in last), default=None),
            split=known.split,
            residual_ratio=known.residual_ratio,
            fitted_steps=known.fitted_steps,
            share_error_ratio=known.share_error_ratio,
            expected_steps=self.expected,
            interference=self._interference(known.interference_error_ratio),
            reference_steps=known.reference_steps,
            unreported_step_seconds=_unreported_seconds(live.values(), now_ns),
            cut_prompts=any(window is not None and window.cut_prompts for window in windows),
        )

    def _interference(self, error_ratio: float | None) -> Interference | None:
        if error_ratio is None:
            return None
        return Interference(
            self.loss_ns / SECOND_NS,
            self.gain_ns / SECOND_NS,
            self.known_ns / SECOND_NS,
            error_ratio,
        )

    def _start_ns(self, desired_ns: int, devices: Sequence[DeviceLedger]) -> int:
        """Return when a new timeline may begin: nothing that is committed moves again."""
        marks = [device.watermark_ns for device in devices]
        ended = [timeline.mark_ns for _, timeline in self.ended]
        return max([desired_ns, self.assignment.since_ns, *marks, *ended])

    def _cost_knowledge(self, live: Mapping[int, EngineTimeline]) -> CostKnowledge:
        for timeline in live.values():
            if isinstance(timeline, WindowTimeline) and timeline.last_window is not None:
                window = timeline.last_window
                return CostKnowledge(window.split, window.residual_ratio, window.fitted)
        return self.costs.known(list(live))


def _unreported_seconds(timelines: Iterable[EngineTimeline], now_ns: int) -> float | None:
    """How long time waits for a step of which no record tells yet; None where none ever would."""
    ranks = [each for each in timelines if isinstance(each, StepTimeline)]
    # What the daemon before had finalized waits for nothing.
    since_ns = [
        max(each.committing_ns, each.mark_ns) for each in ranks if each.work_pending or each.awaited
    ]
    return (now_ns - min(since_ns, default=now_ns)) / SECOND_NS if ranks else None
