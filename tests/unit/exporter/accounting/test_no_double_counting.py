"""No second of a device is counted twice, as a step's and as unattributed, in any order.

The truth is known: when engine steps and foreign processes ran on a GPU. Histories have long
steps after idle, plugins that report requests in flight and older ones, daemons and engines that
die.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from disagg_exporter.model import EngineState, Method, Reason, Role, Use
from support.accounting import NodeAccounting, StepReporter

# A driver's sample is a tenth of a second, and says nothing of the second after a step (A5).
SAMPLE = 0.1


@dataclass
class GpuHistory:
    """One GPU in virtual time: what ran on it, and what the daemons were told."""

    tells: tuple[bool, bool]
    accounting: NodeAccounting = field(default_factory=NodeAccounting)
    now: int = 0
    work: list[tuple[float, float]] = field(default_factory=list)
    strange: list[tuple[float, float]] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=lambda: [0, 0])
    gone: set[int] = field(default_factory=set)
    watermark: float = 0.0

    def __post_init__(self) -> None:
        self.reporters = [StepReporter(name, pid=pid) for pid, name in enumerate("ab", start=1)]
        for number in (0, 1):
            self.assign(number)

    def assign(self, number: int, state: EngineState = EngineState.READY) -> None:
        role = (Role.PREFILL, Role.DECODE)[number]
        name, pids = "ab"[number], (number + 1,)
        self.accounting.engine(name, role, state=state, since=self.now, pids=pids)

    def second(self) -> None:
        """Let a second pass: readings, heartbeats, a commit."""
        self.now += 1
        for tick in range(self.now * 10 - 9, self.now * 10 + 1):
            on = any(a < tick / 10 - SAMPLE / 2 < b for a, b in (*self.work, *self.strange))
            self.accounting.tell(tick / 10, busy_ratio=float(on))
        for number, reporter in enumerate(self.reporters):
            if number not in self.gone:
                in_flight = self.in_flight[number] if self.tells[number] else None
                self.accounting.beat(reporter, self.now, in_flight=in_flight)
        self.accounting.advance(self.now)
        self.check()

    def rest(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()

    def step(
        self, number: int, seconds: int, *, gives_up: bool = False, dies: bool = False
    ) -> None:
        """One engine takes a step from rest, whose record comes when it ends."""
        if number in self.gone:
            return
        self.in_flight[number] = 1
        self.work.append((self.now, self.now + seconds))
        for passed in range(seconds):
            if gives_up and passed == seconds // 2:
                self.in_flight[number] = 0
            self.second()
        self.in_flight[number] = 0
        if dies:
            self.gone.add(number)
            self.assign(number, EngineState.GONE)
            return
        reporter = self.reporters[number]
        make = (reporter.prefill, reporter.decode)[number]
        self.accounting.step(reporter, make(self.now, seconds), self.now)

    def restart(self, absent: int) -> None:
        """The daemon dies and another comes; the engines go on."""
        left = {number + 1 for number in (0, 1)} - {number + 1 for number in self.gone}
        self.accounting = self.accounting.successor(self.now, self.now + absent, left)
        self.now += absent
        for number in (0, 1):
            if number not in self.gone:
                self.assign(number)

    def check(self) -> None:
        """Invariants that hold at any time."""
        assert self.accounting.unbalanced() == []
        assert self.accounting.watermark() >= self.watermark
        assert self.accounting.watermark() <= self.now
        self.watermark = self.accounting.watermark()

    def true_seconds(self, upto: float) -> float:
        """How long the GPU was in use: overlapping uses are one."""
        edges = sorted({0.0, upto, *(edge for use in (*self.work, *self.strange) for edge in use)})
        return sum(
            end - start
            for start, end in pairwise(edges)
            if end <= upto and any(a <= start and end <= b for a, b in (*self.work, *self.strange))
        )


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 1), st.integers(1, 40), st.booleans()),
        st.tuples(st.just("rest"), st.integers(1, 30)),
        st.tuples(st.just("stranger"), st.integers(1, 60)),
        st.tuples(st.just("die"), st.integers(0, 1), st.integers(1, 20)),
        st.tuples(st.just("restart"), st.integers(1, 8)),
    ),
    max_size=8,
)


@given(EVENTS, st.tuples(st.booleans(), st.booleans()))
@example(
    [("rest", 15), ("step", 0, 20, False), ("rest", 10), ("step", 0, 20, False)], (False, True)
)
@example([("rest", 15), ("stranger", 60), ("rest", 20), ("step", 0, 30, False)], (False, False))
@example([("rest", 15), ("step", 0, 30, True), ("rest", 5), ("restart", 5)], (True, True))
def test_accounted_use_never_exceeds_true_use(
    events: list[tuple[object, ...]], tells: tuple[bool, bool]
) -> None:
    """Step seconds and unattributed seconds together are no more than the GPU was in use."""
    history = GpuHistory(tells)
    for event in events:
        match event:
            case ("step", int(number), int(seconds), bool(gives_up)):
                history.step(number, seconds, gives_up=gives_up)
            case ("rest", int(seconds)):
                history.rest(seconds)
            case ("stranger", int(seconds)):
                history.strange.append((history.now, history.now + seconds))
            case ("die", int(number), int(seconds)):
                history.step(number, seconds, dies=True)
            case ("restart", int(absent)):
                history.restart(absent)
    history.rest(90)

    used = history.accounting.seconds()
    counted = sum(used.get(str(use), 0.0) for use in (Use.PREFILL, Use.DECODE, Use.UNATTRIBUTED))
    assert counted <= history.true_seconds(history.accounting.watermark()) + 0.2


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(7, 30), st.booleans()), min_size=1, max_size=6
    ),
    st.booleans(),
)
def test_steps_after_idle_lose_nothing_when_the_plugin_reports_requests_in_flight(
    steps: list[tuple[int, int, bool]], shared: bool
) -> None:
    """However long they are, with or without clients that give up or a second engine."""
    history = GpuHistory((True, True))
    if not shared:
        history.gone.add(1)
        history.assign(1, EngineState.GONE)
    for seconds, rest, gives_up in steps:
        history.rest(rest)
        history.step(0, seconds, gives_up=gives_up and seconds < 60)
    history.rest(30)

    used = history.accounting.seconds()
    assert used["prefill"] == sum(seconds for seconds, _, _ in steps)
    assert (
        history.accounting.cut(history.now, "a") == history.accounting.owed(history.now, "a") == 0
    )


def test_a_followers_device_activity_beside_a_long_step_is_accounted_once() -> None:
    """It has no records: the activity of its own GPU is its time, while its leader's step waits."""
    accounting, leader = NodeAccounting(gpus=2), StepReporter("leader")
    accounting.engine("leader", Role.PREFILL, ["g0"])
    accounting.engine("follower", Role.PREFILL, ["g1"])
    accounting.use(Method.FOLLOWER, 0, "follower")
    for t in range(1, 61):
        for tick in range(t * 10 - 9, t * 10 + 1):
            for gpu in ("g0", "g1"):
                accounting.tell(tick / 10, gpu, busy_ratio=float(20 < tick / 10 <= 45))
        accounting.window(t - 1, t, name="follower", method=Method.FOLLOWER)
        accounting.beat(leader, t, in_flight=int(20 < t < 45))
        accounting.advance(t)
        if t == 45:
            accounting.step(leader, leader.prefill(45, 25))

    for gpu in ("g0", "g1"):
        assert accounting.seconds(gpu)["prefill"] == 25
        assert accounting.reasons(Use.UNATTRIBUTED, gpu).get(Reason.STRANGER, 0) <= 0.1
    assert accounting.unbalanced() == []
