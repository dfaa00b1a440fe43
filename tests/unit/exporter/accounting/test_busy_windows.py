"""How far back the fast gauges reach: each engine as far as its own steps require."""

from __future__ import annotations

import pytest

from disagg_exporter.accounting import Ledger
from disagg_exporter.model import Assignment, Device, EngineState, Phase, Role
from support.accounting import StepReporter, ns


def test_long_steps_of_one_engine_do_not_make_another_busy_engine_look_idle() -> None:
    ledger = Ledger()
    for gpu, engine, role in (("A", "p", Role.PREFILL), ("B", "d", Role.DECODE)):
        ledger.add_device(Device(gpu, 0, "H100", gpu), 0)
        ledger.assign(Assignment(engine, role, (gpu,), EngineState.READY, 0))
    long, short = StepReporter("p"), StepReporter("d")
    for hundredth in range(1, 3001):
        now = hundredth / 100
        ledger.step(short.key, short.decode(now, 0.01, running=1), now_ns=ns(now))
        if hundredth % 1000 == 0:
            ledger.step(long.key, long.prefill(now, 10.0, running=1), now_ns=ns(now))

    gpus, window_seconds = ledger.fast_gauges(ns(30))

    busy = {(each.role, each.phase): each.gpus for each in gpus}
    assert window_seconds == 20.0
    assert busy[Role.DECODE, Phase.DECODE] == pytest.approx(1.0, abs=0.01)
    assert busy[Role.PREFILL, Phase.PREFILL] == pytest.approx(1.0, abs=0.01)


def test_a_long_step_of_a_minute_ago_does_not_widen_the_window() -> None:
    """An idle engine needs no longer window than one that never worked."""
    ledger, reporter = Ledger(), StepReporter("p")
    ledger.add_device(Device("A", 0, "H100", "A"), 0)
    ledger.assign(Assignment("p", Role.PREFILL, ("A",), EngineState.READY, 0))
    ledger.step(reporter.key, reporter.prefill(20, 10.0), now_ns=ns(20))

    assert ledger.fast_gauges(ns(30))[1] == 20.0
    assert ledger.fast_gauges(ns(80))[1] == 1.0
