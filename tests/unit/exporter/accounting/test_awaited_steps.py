"""Steps after idle: their time waits for their record, however long (accounting A6)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from disagg_exporter.model import EngineState, Phase, Reason, Role, Use
from support.accounting import SECOND_NS, NodeAccounting, StepReporter


class Clock:
    """Plays seconds: device readings, the heartbeats of engines, and a commit.

    `in_flight` are the requests that each engine's process waits for; an engine without an entry
    is an older plugin's, which does not say. `active` are the stretches in which devices were.
    """

    def __init__(self, accounting: NodeAccounting, *reporters: StepReporter) -> None:
        self.accounting = accounting
        self.reporters = reporters
        self.in_flight: dict[str, int] = {}
        self.active: list[tuple[float, float]] = []
        self.read: tuple[str, ...] = ()
        self.now = 0

    def until(self, end: int) -> None:
        """Play every second up to `end`, this one included."""
        while self.now < end:
            self.now += 1
            for gpu in self.read:
                for tick in range(self.now * 10 - 9, self.now * 10 + 1):
                    on = any(start < tick / 10 <= end for start, end in self.active)
                    self.accounting.tell(tick / 10, gpu, busy_ratio=float(on))
            self.beat()
            self.accounting.advance(self.now)

    def beat(self) -> None:
        for reporter in self.reporters:
            in_flight = self.in_flight.get(reporter.key.engine)
            self.accounting.beat(reporter, self.now, in_flight=in_flight)


def played(*, told: bool, read: bool) -> tuple[NodeAccounting, StepReporter, Clock]:
    """A ready prefill engine that rests."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(role=Role.PREFILL, pids=(1,))
    clock = Clock(accounting, reporter)
    if told:
        clock.in_flight["e"] = 0
    if read:
        clock.read = ("g0",)
    return accounting, reporter, clock


def prompts(
    accounting: NodeAccounting, reporter: StepReporter, clock: Clock, lengths: Iterable[int]
) -> None:
    """Prompts one after another, 10 s of rest before each."""
    for length in lengths:
        clock.until(clock.now + 10)
        if clock.in_flight:
            clock.in_flight["e"] = 1
        clock.active.append((clock.now, clock.now + length))
        clock.until(clock.now + length)
        accounting.step(reporter, reporter.prefill(clock.now + 0.05, length))
        if clock.in_flight:
            clock.in_flight["e"] = 0


@pytest.mark.parametrize(("told", "read"), [(True, False), (True, True), (False, True)])
def test_six_prompts_of_twenty_seconds_after_idle_are_accounted_in_full(
    told: bool, read: bool
) -> None:
    """120 s of 180 are prefill, at their own time; nothing is cut, late, or counted twice."""
    accounting, reporter, clock = played(told=told, read=read)

    prompts(accounting, reporter, clock, [20] * 6)
    clock.until(clock.now + 30)

    seconds = accounting.seconds()
    assert seconds["prefill"] == 120
    assert seconds.get("unattributed", 0) <= 6  # up to a second after each step
    assert accounting.cut(clock.now) == accounting.owed(clock.now) == 0
    assert accounting.unbalanced() == []


@pytest.mark.parametrize(("told", "read"), [(True, False), (True, True), (False, True)])
def test_prefill_is_accounted_at_the_time_it_ran(told: bool, read: bool) -> None:
    """So that the ratio over any window is the engine's in that window."""
    accounting, reporter, clock = played(told=told, read=read)
    committed: list[tuple[float, float]] = []

    for _ in range(12):
        prompts(accounting, reporter, clock, [20])
        committed.append((accounting.watermark(), accounting.seconds().get("prefill", 0.0)))

    for watermark, prefill in committed:
        true = sum(min(max(watermark - start, 0.0), end - start) for start, end in clock.active)
        assert prefill == pytest.approx(true, abs=0.1)


def test_a_step_of_eighty_seconds_is_awaited_although_its_device_is_inactive() -> None:
    """A first request with prompt logprobs compiles for so long, on the CPU."""
    accounting, reporter, clock = played(told=True, read=True)
    clock.until(30)
    clock.in_flight["e"] = 1
    clock.until(110)

    assert accounting.watermark() <= 30
    accounting.step(reporter, reporter.prefill(110, 79.5))
    clock.in_flight["e"] = 0
    clock.until(140)
    assert accounting.seconds()["prefill"] == 79.5
    assert accounting.cut(140) == 0


def test_activity_without_requests_in_flight_is_a_foreign_process() -> None:
    accounting, _reporter, clock = played(told=True, read=True)
    clock.active.append((10, 100))

    clock.until(80)

    assert accounting.watermark() == 70
    assert accounting.reasons(Use.UNATTRIBUTED)[Reason.STRANGER] == pytest.approx(60, abs=1.1)


def test_a_foreign_process_holds_an_older_plugins_engine_for_at_most_five_minutes() -> None:
    """Activity that no step claims is unattributed once, at its own time, and no longer awaited."""
    accounting, _reporter, clock = played(told=False, read=True)
    clock.active.append((10, 1000))

    clock.until(300)
    held = accounting.watermark()
    clock.until(900)

    assert held == 0
    assert accounting.watermark() >= 890
    seconds = accounting.seconds()
    assert seconds["unattributed"] == pytest.approx(880, abs=3)
    assert accounting.reasons(Use.UNATTRIBUTED).keys() == {Reason.STRANGER}


def test_activity_that_ends_without_a_record_is_unattributed_at_its_own_time() -> None:
    accounting, _reporter, clock = played(told=False, read=True)
    clock.active.append((20, 50))

    clock.until(49)
    held = accounting.watermark()
    clock.until(80)

    assert held <= 20
    assert accounting.watermark() == 70
    assert accounting.reasons(Use.UNATTRIBUTED)[Reason.STRANGER] == pytest.approx(30, abs=1.1)
    assert accounting.seconds()["idle"] == pytest.approx(40, abs=1.1)


def test_a_step_is_accounted_in_full_after_its_client_disconnected() -> None:
    """The client gives up after 8 s; the engine ends its step of 30 s and reports it then."""
    for read in (False, True):
        accounting, reporter, clock = played(told=True, read=read)
        clock.until(20)
        clock.in_flight["e"] = 1
        clock.active.append((20, 50))
        clock.until(28)
        clock.in_flight["e"] = 0
        clock.until(50)
        accounting.step(reporter, reporter.prefill(50.05, 30))
        clock.until(70)

        assert accounting.seconds()["prefill"] == 30
        assert accounting.cut(70) == accounting.owed(70) == 0


def test_a_request_that_ends_without_a_step_is_not_awaited_for_long() -> None:
    """Not at all where the device is inactive, else for a minute."""
    for read, at_most in ((True, 10), (False, 70)):
        accounting, _reporter, clock = played(told=True, read=read)
        clock.until(20)
        clock.in_flight["e"] = 1
        clock.until(25)
        clock.in_flight["e"] = 0
        clock.until(25 + at_most)
        assert accounting.watermark() >= 25 + at_most - 11

        assert accounting.seconds()["idle"] == accounting.watermark()


def test_an_engine_that_dies_inside_a_long_step_leaves_its_time_unobserved() -> None:
    """Nothing shows how long the step ran: neither idle nor a foreign process."""
    accounting, _reporter, clock = played(told=True, read=False)
    clock.until(20)
    clock.in_flight["e"] = 1
    clock.until(35)
    accounting.engine(role=Role.PREFILL, state=EngineState.GONE, since=35.5)
    clock.reporters = ()
    clock.until(60)

    assert accounting.seconds()["idle"] == pytest.approx(20, abs=0.1)
    assert accounting.reasons(Use.UNOBSERVED)[Reason.NO_RECORD] == pytest.approx(15.5, abs=0.1)


def test_with_device_readings_the_step_of_a_dead_engine_is_unattributed_once() -> None:
    accounting, _reporter, clock = played(told=True, read=True)
    clock.active.append((20, 35.5))
    clock.until(20)
    clock.in_flight["e"] = 1
    clock.until(35)
    accounting.engine(role=Role.PREFILL, state=EngineState.GONE, since=35.5)
    clock.reporters = ()
    clock.until(60)

    reasons = accounting.reasons(Use.UNATTRIBUTED)
    assert reasons[Reason.NO_RECORD] == pytest.approx(15.5, abs=1.1)
    assert reasons.get(Reason.STRANGER, 0) == 0
    assert accounting.unbalanced() == []


def test_a_long_step_is_accounted_in_full_across_a_daemon_restart() -> None:
    before, reporter, clock = played(told=True, read=False)
    clock.until(20)
    clock.in_flight["e"] = 1
    clock.until(30)

    accounting = clock.accounting = before.successor(written=30, back=33)
    clock.now = 33
    clock.until(50)
    assert accounting.watermark() <= 20
    accounting.step(reporter, reporter.prefill(50.05, 30))
    clock.in_flight["e"] = 0
    accounting.engine(role=Role.PREFILL, pids=(1,))
    clock.until(80)

    assert accounting.seconds()["prefill"] == 30
    assert accounting.seconds().get("unobserved", 0) == 0
    assert accounting.cut(80) == accounting.owed(80) == 0


def test_an_engine_sharing_the_device_waits_and_gets_its_own_share() -> None:
    """A device's watermark is the least of its engines'; steps of one may be known much earlier."""
    accounting, a, b = NodeAccounting(), StepReporter("a", pid=1), StepReporter("b", pid=2)
    accounting.engine("a", Role.PREFILL)
    accounting.engine("b", Role.DECODE)
    clock = Clock(accounting, a, b)
    clock.in_flight |= {"a": 0, "b": 0}
    clock.until(20)
    clock.in_flight["a"] = 1
    for t in range(21, 41):
        clock.until(t)
        accounting.step(b, b.decode(t, 0.5))
    accounting.step(a, a.prefill(40, 20))
    clock.in_flight["a"] = 0
    clock.until(60)

    assert accounting.engine_seconds(60, "a")[Phase.PREFILL] == 15
    assert accounting.engine_seconds(60, "b")[Phase.DECODE] == 5
    assert accounting.cut(60, "a") == accounting.cut(60, "b") == 0


def test_activity_of_an_engine_sharing_the_device_is_no_sign_of_a_step() -> None:
    """An older plugin does not show whose it is: an idle engine holds no watermark."""
    accounting, a, b = NodeAccounting(), StepReporter("a", pid=1), StepReporter("b", pid=2)
    accounting.engine("a", Role.PREFILL)
    accounting.engine("b", Role.DECODE)
    clock = Clock(accounting, a, b)
    clock.read, clock.active = ("g0",), [(0, 100)]
    for t in range(1, 61):
        clock.until(t)
        accounting.step(b, b.decode(t, 1))

    assert accounting.watermark() == 50


def test_requests_waiting_for_kv_are_not_awaited_as_a_step() -> None:
    """The last record reports them: only requests in flight beyond those count."""
    accounting, reporter, clock = played(told=True, read=False)
    clock.until(5)
    accounting.step(reporter, reporter.step(5, 0, deferred=3))
    clock.in_flight["e"] = 3
    clock.until(60)
    assert accounting.watermark() == 54

    clock.in_flight["e"] = 4
    clock.until(80)
    assert accounting.watermark() == 54


def test_requests_counted_during_work_are_outdated_by_its_last_record() -> None:
    """They were withdrawn or done meanwhile: the rest after that record is no awaited step."""
    accounting, reporter, clock = played(told=True, read=False)
    clock.until(5)
    for t in range(6, 12):
        accounting.step(reporter, reporter.decode(t - 0.1, 0.9, running=1))
        clock.in_flight["e"] = 2
        clock.until(t)
    accounting.step(reporter, reporter.decode(11.9, 0.9))
    clock.in_flight["e"] = 0
    clock.until(40)

    assert accounting.watermark() == 34
    assert accounting.seconds()["decode"] == pytest.approx(6.3)


def test_processes_of_one_engine_wait_for_their_own_requests() -> None:
    """Of several API servers one has the request, another may get the record."""
    accounting = NodeAccounting()
    accounting.engine(role=Role.PREFILL)
    one, two = StepReporter(pid=1), StepReporter(pid=2)

    def beats(first: int, last: int, waiting: dict[int, int]) -> None:
        for t in range(first, last + 1):
            for reporter in (one, two):
                accounting.beat(reporter, t, in_flight=waiting[reporter.key.pid])
            accounting.advance(t)

    beats(1, 20, {1: 0, 2: 0})
    beats(21, 40, {1: 0, 2: 1})
    held = accounting.watermark()
    accounting.step(one, one.prefill(40.5, 20))
    beats(41, 60, {1: 0, 2: 0})

    assert held == 15  # the first beat after the request came was the other's
    assert accounting.watermark() == 54
    assert accounting.seconds()["prefill"] == 20


@pytest.mark.parametrize("first", [1, 2])
def test_a_new_daemon_treats_an_engine_as_idle_only_after_all_its_processes_reported(
    first: int,
) -> None:
    """The process without the request may report first, during a step of the other's request."""
    before = NodeAccounting()
    before.engine(role=Role.PREFILL, pids=(1, 2))
    reporters = sorted((StepReporter(pid=1), StepReporter(pid=2)), key=lambda r: r.key.pid != first)

    def beats(accounting: NodeAccounting, start: int, last: int, waiting: dict[int, int]) -> None:
        for t in range(start, last + 1):
            for number, reporter in enumerate(reporters):
                in_flight = waiting[reporter.key.pid]
                accounting.beat(reporter, t + 0.1 * number, in_flight=in_flight)
            accounting.advance(t + 0.3)

    beats(before, 1, 20, {1: 0, 2: 0})
    beats(before, 21, 40, {1: 0, 2: 1})
    after = before.successor(written=40, back=43)
    after.engine(role=Role.PREFILL, pids=(1, 2))
    beats(after, 44, 50, {1: 0, 2: 1})

    assert after.watermark() <= 20
    after.step(reporters[0], reporters[0].prefill(50.5, 29.5))
    beats(after, 51, 80, {1: 0, 2: 0})
    assert after.seconds()["prefill"] == 29.5
    assert after.cut(80) == after.owed(80) == 0


def test_a_process_that_ended_during_the_restart_is_awaited_for_seconds_only() -> None:
    before = NodeAccounting()
    before.engine(role=Role.PREFILL, pids=(1, 2))
    reporters = [StepReporter(pid=1), StepReporter(pid=2)]
    for t in range(1, 31):
        for reporter in reporters:
            before.beat(reporter, t, in_flight=0)
        before.advance(t)
    after = before.successor(written=30, back=33)
    after.engine(role=Role.PREFILL, pids=(1, 2))
    for t in range(34, 61):
        after.beat(reporters[0], t, in_flight=0)
        after.advance(t)

    assert after.watermark() == 54


def test_a_new_daemon_awaits_no_step_over_the_idle_hours_before_it() -> None:
    """Time that was committed before is not awaited."""
    before = NodeAccounting()
    before.engine(role=Role.PREFILL, pids=(1, 2))
    reporters = [StepReporter(pid=1), StepReporter(pid=2)]
    before.step(reporters[0], reporters[0].prefill(5, 2))
    for t in range(6, 3601):
        for reporter in reporters:
            before.beat(reporter, t, in_flight=0)
    before.advance(3600)
    after = before.successor(written=3600, back=3603)
    after.engine(role=Role.PREFILL, pids=(1, 2))
    after.beat(reporters[0], 3604, in_flight=0)
    [account] = after.ledger.engine_accounts(3604 * SECOND_NS)

    assert account.unreported_step_seconds is not None
    assert account.unreported_step_seconds <= 10


def test_an_ended_process_is_awaited_only_from_the_first_heartbeat_on() -> None:
    """Its engine works for a minute and then is idle as soon as any other."""
    before = NodeAccounting()
    before.engine(role=Role.PREFILL, pids=(1, 2))
    reporters = [StepReporter(pid=1), StepReporter(pid=2)]
    for t in range(1, 31):
        for reporter in reporters:
            before.beat(reporter, t, in_flight=0)
        before.advance(t)
    after = before.successor(written=30, back=33)
    after.engine(role=Role.PREFILL, pids=(1, 2))
    for t in range(34, 91):
        after.step(reporters[0], reporters[0].step(t, 1, context_tokens=9, running=int(t < 90)))
        after.beat(reporters[0], t, in_flight=int(t < 90))
        after.advance(t)
    for t in range(91, 96):
        after.beat(reporters[0], t, in_flight=0)
        after.advance(t)

    assert after.watermark() == 89


def test_a_working_rank_does_not_hold_the_watermark_of_another() -> None:
    """It is not reported which rank has a request; while one works, it is taken as that one's."""
    accounting = NodeAccounting(gpus=2)
    accounting.engine(role=Role.PREFILL, ranks=2)
    ranks = [StepReporter(index=index) for index in (0, 1)]
    for t in range(1, 61):
        accounting.step(ranks[0], ranks[0].prefill(t, 0.9, running=2))
        for reporter in ranks:
            accounting.beat(reporter, t, in_flight=5)
        accounting.advance(t)

    assert accounting.watermark("g0") == accounting.watermark("g1") == 54


def test_device_activity_shows_the_step_of_a_rank_beside_a_working_one() -> None:
    accounting = NodeAccounting(gpus=2)
    accounting.engine(role=Role.PREFILL, ranks=2)
    ranks = [StepReporter(index=index) for index in (0, 1)]
    for t in range(1, 61):
        for tick in range(t * 10 - 9, t * 10 + 1):
            accounting.tell(tick / 10, "g0", busy_ratio=1.0)
            accounting.tell(tick / 10, "g1", busy_ratio=float(20 < tick / 10 <= 40))
        accounting.step(ranks[0], ranks[0].prefill(t, 1.0, running=2))
        for reporter in ranks:
            accounting.beat(reporter, t, in_flight=5)
        if t == 40:
            accounting.step(ranks[1], ranks[1].prefill(t, 20))
        accounting.advance(t)

    assert accounting.seconds("g1")["prefill"] == 20
    assert accounting.cut(60) == accounting.owed(60) == 0
    assert accounting.watermark("g0") == accounting.watermark("g1") == 50


def test_a_restarted_engine_is_not_held_by_earlier_foreign_activity() -> None:
    """With an older plugin: foreign activity held it once, and its next process starts afresh."""
    accounting, _reporter, clock = played(told=False, read=True)
    clock.active = [(10, 500), (520, 540)]
    clock.until(400)
    accounting.engine(role=Role.PREFILL, state=EngineState.GONE, since=400)
    clock.reporters = ()
    clock.until(510)
    again = StepReporter(pid=2)
    accounting.engine(role=Role.PREFILL, pids=(2,), since=510)
    clock.reporters = (again,)
    clock.until(540)
    accounting.step(again, again.prefill(540, 20))
    clock.until(570)

    assert accounting.seconds()["prefill"] == 20
    assert accounting.cut(570) == 0


def test_all_idle_ranks_wait_for_the_record_of_one() -> None:
    accounting = NodeAccounting(gpus=2)
    accounting.engine(role=Role.PREFILL, ranks=2)
    ranks = [StepReporter(index=index) for index in (0, 1)]

    def beats(first: int, last: int, in_flight: int) -> None:
        for t in range(first, last + 1):
            for reporter in ranks:
                accounting.beat(reporter, t, in_flight=in_flight)
            accounting.advance(t)

    beats(1, 20, 0)
    beats(21, 40, 1)
    accounting.step(ranks[1], ranks[1].prefill(40.5, 20))
    beats(41, 60, 0)

    assert [accounting.seconds(gpu).get("prefill", 0) for gpu in ("g0", "g1")] == [0, 20]
    assert accounting.watermark("g0") == accounting.watermark("g1") == 54


def test_a_request_without_a_record_is_given_up_after_ten_minutes() -> None:
    """A hung engine with a live front end, like one that hangs in the middle of its work."""
    accounting, _reporter, clock = played(told=True, read=False)
    clock.until(20)
    clock.in_flight["e"] = 1

    clock.until(600)
    held = accounting.watermark()
    clock.until(640)

    assert held == 14
    assert accounting.watermark() == 634
    assert accounting.seconds()["unobserved"] == pytest.approx(620, abs=1)


@pytest.mark.parametrize("told", [True, False])
def test_the_awaited_step_time_is_reported_and_explains_the_lag(told: bool) -> None:
    accounting, reporter, clock = played(told=told, read=True)

    def waited() -> float | None:
        [account] = accounting.ledger.engine_accounts(clock.now * SECOND_NS)
        return account.unreported_step_seconds

    clock.until(20)
    assert waited() == 0
    clock.active.append((20, 320))
    if told:
        clock.in_flight["e"] = 1
    clock.until(320)
    lag = clock.now - accounting.watermark()
    assert waited() == pytest.approx(300, abs=1)
    assert lag - 6 == pytest.approx(300, abs=5)  # of a device, in blocks of 5 s
    accounting.step(reporter, reporter.prefill(320.5, 300))
    clock.until(321)
    assert waited() == pytest.approx(0, abs=1)
