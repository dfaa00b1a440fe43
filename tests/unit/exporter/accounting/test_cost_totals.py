"""Cost totals of an engine's steps go on across daemons and models."""

from __future__ import annotations

from random import Random

from disagg_exporter.model import EngineState, Interference
from support.accounting import NodeAccounting, StepReporter, ns


def _mix(accounting: NodeAccounting, reporter: StepReporter, start: float, steps: int) -> float:
    """Let an engine decode at twice the cost beside a prompt; return when its steps end."""
    draw, now = Random(7), start
    for number in range(steps):
        tokens = draw.choice((128, 256, 512, 1024)) if number % 3 != 1 else 0
        requests = draw.randint(1, 64) if number % 3 else 0
        seconds = 0.004 + 5e-5 * tokens + 2e-4 * requests * (2 if tokens else 1)
        now += seconds
        step = reporter.step(
            now,
            seconds,
            context_requests=min(tokens, 1),
            context_tokens=tokens,
            computed_tokens=tokens,
            generation_requests=requests,
            generation_tokens=requests,
            running=requests,
        )
        accounting.step(reporter, step)
        if number % 50 == 0:
            accounting.advance(now)
    accounting.beat(reporter, now + 7)
    accounting.advance(now + 7)
    return now + 7


def _interference(accounting: NodeAccounting, now: float) -> Interference:
    [account] = accounting.ledger.engine_accounts(ns(now))
    assert account.interference is not None
    return account.interference


def test_interference_totals_continue_in_the_next_daemon() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(pids=(1,))
    now = _mix(accounting, reporter, 0.0, 1500)
    before = _interference(accounting, now)

    after = accounting.successor(now, now + 1)
    after.ledger.restore_costs("e", accounting.ledger.costs("e"))
    after.beat(reporter, now + 2)
    now = _mix(after, reporter, now + 2, 300)

    assert before.loss_seconds > 0.5
    assert _interference(after, now).loss_seconds > before.loss_seconds
    assert _interference(after, now).gain_seconds >= before.gain_seconds
    assert _interference(after, now).step_seconds > before.step_seconds > before.loss_seconds


def test_interference_is_a_ratio_of_the_steps_for_which_it_was_known() -> None:
    """As a ratio of all steps it would be too small: the first ones have no known cost."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    early = _interference(accounting, _mix(accounting, reporter, 0.0, 1500))

    later_end = _mix(accounting, reporter, 1000.0, 1500)
    later = _interference(accounting, later_end)

    def cost_ratio(loss: float, gain: float, steps: float) -> float:
        return (loss - gain) / steps

    at_first = cost_ratio(*early[:3])
    since = cost_ratio(*(now - then for now, then in zip(later[:3], early[:3], strict=True)))
    assert abs(at_first - since) < 0.02


def test_interference_totals_continue_with_the_next_model() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    now = _mix(accounting, reporter, 0.0, 1500)
    before = _interference(accounting, now)

    accounting.engine(state=EngineState.GONE, since=now)
    accounting.engine(since=now + 1, model="another", pids=(2,))
    [restarted] = accounting.ledger.engine_accounts(ns(now + 1))
    now = _mix(accounting, StepReporter(pid=2), now + 1, 1500)

    assert restarted.interference is None
    assert _interference(accounting, now).loss_seconds > 1.8 * before.loss_seconds


def test_expected_step_totals_continue_in_the_next_daemon_and_model() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(pids=(1,))
    now = _mix(accounting, reporter, 0.0, 1500)
    [before] = accounting.ledger.engine_accounts(ns(now))

    after = accounting.successor(now, now + 1)
    after.ledger.restore_costs("e", accounting.ledger.costs("e"))
    after.beat(reporter, now + 2)
    now = _mix(after, reporter, now + 2, 300)
    [resumed] = after.ledger.engine_accounts(ns(now))
    after.engine(state=EngineState.GONE, since=now)
    after.engine(since=now + 1, model="another", pids=(2,))
    [restarted] = after.ledger.engine_accounts(ns(now + 1))

    assert min(before.expected_steps.taken_ns) > 0
    for at_first, later in zip(before.expected_steps, resumed.expected_steps, strict=True):
        assert all(then < since for then, since in zip(at_first, later, strict=True))
    assert sum(restarted.expected_steps.taken_ns) >= sum(resumed.expected_steps.taken_ns)
