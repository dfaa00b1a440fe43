"""Per-engine accounting: its timelines, the sums that outlive its processes, and the commits.

A commit accounts for finalized time of the engines' timelines on a device, and credits the engines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_exporter.accounting.awaited_steps import AwaitedSteps, InFlight, any_active
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.engine_reports import (
    AssignmentHistory,
    NodeTokens,
    ReportedTotals,
)
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.intervals.timeline import Pieces
from disagg_exporter.accounting.rank_costs import RankCostModels
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.accounting.timelines.window_timeline import EngineTimeline, WindowTimeline
from disagg_exporter.model import (
    Assignment,
    EngineState,
    ExpectedSteps,
    Method,
    Phase,
    Role,
    Step,
    StreamKey,
)


@dataclass(slots=True)
class EngineLedger:
    """What one engine has used; it outlives the engine's processes, as counters must.

    `cut_ns` is the time cut on devices that no longer exist; the others count their own. `loss_ns`
    and `gain_ns` are what mixing prefill and decode cost and saved, by all its cost models so far,
    in the `known_ns` of step time for which they knew it; `expected` sums the steps' expected
    time.
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
        """Add the cost of mixing and the expected time of steps since the last call."""
        loss_ns, gain_ns, known_ns = self.costs.take_interference_ns()
        self.loss_ns += loss_ns
        self.gain_ns += gain_ns
        self.known_ns += known_ns
        self.expected = self.expected.plus(self.costs.take_expected())

    def forget_costs(self) -> None:
        """Drop the learned costs: the engine has changed its model or devices."""
        self.count_costs()
        self.costs = RankCostModels()

    def reports_tokens(self, phase: Phase) -> bool:
        """Return whether it, or its leader, reports tokens of a phase."""
        return self.method is Method.FOLLOWER or any(
            count for (_, each), count in self.tokens.items() if each is phase
        )

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
        """Return at a heartbeat whether a step of its rank may be under way (A6).

        `in_flight` are the requests that its process waits for; None if not reported.
        """
        ranks = [each for each in self.timelines.values() if isinstance(each, StepTimeline)]
        if len(ranks) == 1 and ranks[0].is_queued_at_work(key, beat.sequence):
            # Nothing is to be awaited beside a step that is known to follow, and the requests that
            # are in flight now are outdated by its record: the queue may go on.
            self.awaited_steps.hear(key.pid, beat.t_ns)
            return False
        for each in ranks:
            each.ingest()
        own = self.timelines[key.engine_index]
        # After a daemon restart only the heartbeat has the state of its rank's last record.
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

    def collect(self, devices: Mapping[str, DeviceLedger], node: NodeTokens) -> None:
        """Collect overflows, tokens and lost records that its timelines have finalized."""
        assignment = self.assignment
        for rank, timeline in self.timelines.items():
            for gpu in assignment.of_rank(rank):
                if gpu in devices:
                    devices[gpu].defer(assignment.engine, timeline.overflows)
            self._count(node, assignment, (0, 0))  # both phases exist from the start
            for tokens in timeline.tokens:
                for owner, *counts in self.history.shares(tokens):
                    self._count(node, owner, counts)
            self.lost_records += timeline.lost_records
            self.late_records += timeline.late_records
            timeline.reset_counts()
        self.count_costs()
        marks_ns = (timeline.mark_ns for timeline in self.timelines.values())
        self.history.forget_before(min(marks_ns, default=0))

    def between(self, start_ns: int, end_ns: int) -> list[tuple[int, Pieces]]:
        """Return each timeline's rank and its finalized pieces in [start, end)."""
        timelines = (*self.ended, *self.timelines.items())
        return [(rank, each.timeline.between(start_ns, end_ns)) for rank, each in timelines]

    def drop_pieces(self, read_ns: int | None) -> None:
        """Drop the pieces up to where all devices have read; all of them if no device reads."""
        for _, each in (*self.ended, *self.timelines.items()):
            each.timeline.drop_before(each.mark_ns if read_ns is None else read_ns)
        # A timeline ends one nanosecond after its engine; devices read up to the engine's end.
        self.ended = [
            (rank, each)
            for rank, each in self.ended
            if read_ns is not None and each.mark_ns > read_ns + 1
        ]

    def _count(self, node: NodeTokens, owner: Assignment, counts: Sequence[int]) -> None:
        for phase, count in zip(Phase, counts, strict=True):
            self.tokens[owner.role, phase] += count
            node.count(owner, phase, count)

    def _start_ns(self, desired_ns: int, devices: Sequence[DeviceLedger]) -> int:
        """Return when a new timeline may begin: above all committed time."""
        marks = [device.watermark_ns for device in devices]
        ended = [timeline.mark_ns for _, timeline in self.ended]
        return max([desired_ns, self.assignment.since_ns, *marks, *ended])


def commit(
    device: DeviceLedger,
    engines: Mapping[str, EngineLedger],
    node: NodeTokens,
    now_ns: int,
    rules: Rules,
) -> None:
    """Advance a device's watermark as far as its engines allow, and credit them (A6)."""
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
        # Carry-over of a forgotten engine is credited to the device only.
        if credit.engine in engines:
            slice_ns = credit.length_ns * device.device.slices
            engine = engines[credit.engine]
            engine.gpu_slice_ns[credit.role, credit.phase] += slice_ns
            if engine.reports_tokens(credit.phase):
                node.count_time(credit.role, credit.phase, credit.owner, slice_ns)


def watermarks(devices: Iterable[DeviceLedger]) -> dict[str, set[int]]:
    """Return the watermarks of the devices that still read each engine's timelines."""
    read_ns: defaultdict[str, set[int]] = defaultdict(set)
    for device in devices:
        for name in device.awaited():
            read_ns[name].add(device.watermark_ns)
    return read_ns


def drop_read(devices: Iterable[DeviceLedger], engines: Mapping[str, EngineLedger]) -> None:
    """Drop the pieces of every engine's timelines that all devices have read."""
    read_ns = watermarks(devices)
    for name, engine in engines.items():
        engine.drop_pieces(min(read_ns.get(name, ()), default=None))
