"""Accounting continued by another daemon: what an absence costs, and what it must not."""

from __future__ import annotations

import pytest

from disagg_exporter.model import EngineState, Phase, Reason, Role, Use
from support.accounting import NodeAccounting, StepReporter


def decoding(
    accounting: NodeAccounting,
    reporter: StepReporter,
    start: float,
    end: float,
    elapsed: float = 0.1,
) -> None:
    """Let an engine decode without a rest over a stretch, each step told as it ends."""
    for number in range(round((end - start) / elapsed)):
        accounting.step(
            reporter, reporter.decode(start + (number + 1) * elapsed, elapsed, running=1)
        )


def unheard(reporter: StepReporter, start: float, end: float, elapsed: float = 0.1) -> None:
    """Let an engine decode while nobody listens."""
    for number in range(round((end - start) / elapsed)):
        reporter.decode(start + (number + 1) * elapsed, elapsed, running=1)


@pytest.mark.parametrize("absent", [0.02, 30.0, 600.0, 86400.0])
def test_work_of_a_busy_engine_without_a_daemon_is_restored_from_its_totals(absent: float) -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    decoding(accounting, reporter, 0, 20)
    accounting.advance(20)
    back = 20 + absent
    unheard(reporter, 20, back, absent / 10)

    after = accounting.successor(20, back)
    after.advance(back)
    assert after.watermark() == accounting.watermark()
    decoding(after, reporter, back, back + 10)
    after.advance(back + 10)

    assert after.unbalanced() == []
    assert after.watermark() == back + 4
    assert after.seconds() == {"decode": back + 4}
    assert after.engine_seconds(back + 10) == {Phase.PREFILL: 0, Phase.DECODE: back + 4}
    assert after.lost(back + 10) == 0
    decoding(after, reporter, back + 10, back + 20)
    after.advance(back + 20)
    assert after.tokens(back + 20)[Phase.DECODE] == 200 + 10 + 140


def test_time_without_a_daemon_that_no_total_claims_is_unobserved() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    decoding(accounting, reporter, 0, 20)
    accounting.beat(reporter, 20)
    accounting.advance(20)
    unheard(reporter, 25, 30, 1.0)

    after = accounting.successor(20, 50)
    after.beat(reporter, 51)
    after.advance(51)
    after.beat(reporter, 61)
    after.advance(61)

    assert after.seconds() == {"decode": 25, "unobserved": 26, "idle": 4}
    assert after.reasons(Use.UNOBSERVED) == {Reason.NO_DAEMON: 26}


def test_idle_time_observed_by_the_previous_daemon_stays_idle() -> None:
    """Of the time above the watermark only the successor can account it."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.step(reporter, reporter.decode(10, 1))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    after = accounting.successor(20, 30)
    after.beat(reporter, 30.5)
    after.beat(reporter, 40)
    after.advance(40)

    assert after.seconds() == {"decode": 1, "idle": 23, "unobserved": 10}
    assert after.reasons(Use.IDLE) == {Reason.NO_REQUEST: 23}


def test_records_lost_after_an_absence_are_counted_as_lost() -> None:
    """The engine has reported since that nothing was missed while no daemon ran."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.step(reporter, reporter.decode(10, 1))
    accounting.beat(reporter, 20)
    accounting.advance(20)

    after = accounting.successor(20, 30)
    after.beat(reporter, 31)
    reporter.decode(40, 0.5)
    after.step(reporter, reporter.decode(41, 0.5))
    after.beat(reporter, 50)
    after.advance(50)

    assert after.lost(50) == 1
    assert after.seconds()["decode"] == 2


def test_a_device_without_an_engine_was_unobserved_while_no_daemon_ran() -> None:
    accounting = NodeAccounting()
    accounting.activity(0, 20, 0.0)
    accounting.advance(20)

    after = accounting.successor(20, 50)
    after.activity(50, 60, 0.0)
    after.advance(60)

    assert after.reasons(Use.UNOBSERVED) == {Reason.NO_DAEMON: 30}
    assert after.reasons(Use.IDLE) == {Reason.NO_ENGINE: 20}
    assert after.watermark() == 50


def test_an_engine_that_died_without_a_daemon_ends_with_the_absence() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(pids=(1,))
    decoding(accounting, reporter, 0, 20)
    accounting.advance(20)

    after = accounting.successor(20, 50, pids=())
    after.engine(since=52, state=EngineState.STARTING, pids=(2,))
    after.advance(63)

    assert after.seconds() == {"decode": 20, "unobserved": 32, "idle": 5}
    assert after.reasons(Use.UNOBSERVED) == {Reason.NO_DAEMON: 30, Reason.NO_READING: 2}
    assert after.reasons(Use.IDLE) == {Reason.STARTING: 5}
    assert after.unbalanced() == []


@pytest.mark.parametrize("every", [3.0, 11.0])
def test_repeated_daemon_restarts_lose_nothing(every: float) -> None:
    """A group of two GPUs, and two engines on one GPU, on the node's grid of 5 s; 1 s without each.

    Those that die every 3 s commit nothing between.
    """
    accounting, alone = NodeAccounting(gpus=3), {"a": ["g0", "g1"], "b": ["g2"], "c": ["g2"]}
    tellers = {name: StepReporter(name, pid=n + 1) for n, name in enumerate(alone)}
    for name, gpus in alone.items():
        accounting.engine(name, Role.MIXED, gpus, pids=(tellers[name].key.pid,))
    end, died = 60.0, 0.0
    for tenth in range(1, round(end * 10) + 1):
        now = tenth / 10
        down = died and now <= died + 1
        if died and not down and now <= died + 1.1:
            accounting = accounting.successor(died, now - 0.05)
        for name, reporter in tellers.items():
            if tenth % 2 if name == "a" else tenth % 30 < 6:
                step = reporter.prefill(now, 0.08, running=int(now < end))
            else:
                step = reporter.decode(now, 0.06, running=int(now < end))
            if not down:
                accounting.step(reporter, step)
        if down:
            continue
        for gpu in accounting.gpus:
            accounting.activity(now - 0.1, now, 0.7, gpu)
        if tenth % 10 == 0:
            accounting.advance(now)
        if now - died >= every:
            died = now
    if end <= died + 1:
        accounting = accounting.successor(died, end)
    for second in range(61, 90):
        for reporter in tellers.values():
            accounting.beat(reporter, second)
        for gpu in accounting.gpus:
            accounting.activity(second - 1, second, 0.0, gpu)
        accounting.advance(second)

    assert accounting.unbalanced() == []
    for name in alone:
        own, booked = tellers[name].seconds(), accounting.engine_seconds(90, name)
        assert accounting.cut(90, name) == accounting.owed(90, name) == 0
        assert accounting.lost(90, name) == 0
        for phase, seconds in own.items():
            # The two on one GPU work at the same time, so that each has half of it (A3).
            each = 2 if name == "a" else 0.5
            assert booked[phase] == pytest.approx(seconds * each, rel=0.02)
    for gpu in accounting.gpus:
        assert accounting.watermark(gpu) == 80
        assert sum(accounting.seconds(gpu).values()) == pytest.approx(80, abs=1e-5)
        assert set(accounting.reasons(Use.UNOBSERVED, gpu)) <= {Reason.NO_DAEMON}


def test_energy_of_an_absence_is_unobserved_and_of_idle_time_before_it_idle() -> None:
    """Also where no engine holds the device's watermark until it has been read."""
    accounting = NodeAccounting()
    accounting.activity(0, 20, 0.0)
    accounting.power(0, 20, 50.0)
    accounting.advance(20)
    assert accounting.joules() == {"idle": 500}

    after = accounting.successor(20, 50)
    after.advance(50.05)
    after.tell(50.1, energy_joules=20 * 50 + 30.1 * 200, power_watts=200.0)
    after.advance(58)

    joules = after.joules()
    assert joules is not None
    assert sum(joules.values()) == pytest.approx(1000 + 30.1 * 200)
    assert joules["idle"] == pytest.approx(1000, abs=10)


def test_step_time_cut_on_a_removed_device_stays_counted() -> None:
    """And what it still owed counts as cut: no device can pay it."""
    accounting, reporter = NodeAccounting(gpus=2), StepReporter()
    accounting.engine()
    for t in range(101):
        accounting.beat(reporter, t)
    accounting.advance(100)
    for _ in range(100):
        accounting.step(reporter, reporter.decode(100, 1))
    accounting.beat(reporter, 101)
    accounting.advance(101)
    cut, owed = accounting.cut(101), accounting.owed(101)
    assert cut > 0
    assert owed > 0
    here = [account.device for account in accounting.ledger.device_accounts()]

    once = accounting.successor(101, 102, devices=here[:1])
    twice = once.successor(102, 103, devices=here[:1])

    for after, now in ((once, 102), (twice, 103)):
        assert after.cut(now) == pytest.approx(cut + owed / 2)
