"""Golden vectors of engines that report sums over a stretch of time, and of source changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.intervals.activity import ActivitySample, mean_activity
from disagg_exporter.model import Method, Phase, Reason, Role, Use
from support.accounting import NodeAccounting, StepReporter, ns


def _paged(gpus: int = 1, role: Role = Role.MIXED) -> NodeAccounting:
    accounting = NodeAccounting(gpus)
    accounting.engine(role=role)
    accounting.use(Method.PAGE, 0)
    return accounting


def _rest(accounting: NodeAccounting, start: int) -> None:
    """Let the devices and the engine rest until 5 s: activity is committed by whole blocks."""
    for gpu in accounting.gpus:
        accounting.activity(start + 0.1, 5, 0.0, gpu)
    accounting.window(start, 5, running=0)
    accounting.advance(5)


def test_a_page_window_holds_the_device_as_long_as_it_was_active() -> None:
    accounting = _paged()
    accounting.activity(0, 2, 0.6)
    accounting.window(0, 1, 0.25, running=1)
    accounting.window(1, 2, 0.75, running=0)
    _rest(accounting, 2)
    assert accounting.seconds() == {"prefill": 0.6, "decode": 0.6, "idle": 3.8}
    assert accounting.reasons(Use.IDLE) == {Reason.HOST_GAP: 0.4, Reason.NO_REQUEST: 3.4}
    assert accounting.engine_seconds(5) == {Phase.PREFILL: 0.6, Phase.DECODE: 0.6}


def test_activity_explained_by_the_engine_is_not_unattributed() -> None:
    accounting = _paged()
    accounting.activity(0, 1, 0.0)
    accounting.window(0, 1)
    accounting.activity(1, 2, 0.5)
    accounting.window(1, 2, running=1)
    accounting.advance(12)
    assert accounting.reasons(Use.UNATTRIBUTED) == {}


def test_a_sample_that_ends_after_its_page_is_accounted_with_the_next() -> None:
    accounting = _paged()
    accounting.activity(0, 2, 1.0)
    accounting.window(0, 0.95, 1.0, running=1)
    accounting.window(0.95, 1.95, 1.0, running=1)
    accounting.window(1.95, 2, 1.0, running=1)
    _rest(accounting, 2)
    assert accounting.seconds() == {"prefill": 2.0, "idle": 3.0}


def test_an_engine_on_four_devices_is_accounted_by_their_mean_activity() -> None:
    accounting = _paged(gpus=4)
    for gpu, ratio in zip(accounting.gpus, (1.0, 0.5, 0.5, 0.0), strict=True):
        accounting.activity(0, 5, ratio / 5, gpu)
    accounting.window(0, 5, 0.0, running=1)
    accounting.advance(5)
    assert accounting.engine_seconds(5) == {Phase.PREFILL: 0.0, Phase.DECODE: 2.0}


def test_a_device_without_readings_is_not_counted_as_idle_in_its_group() -> None:
    """Invariant c: one of two cannot be read; the other stands for the group."""
    accounting = _paged(gpus=2)
    accounting.activity(0, 5, 0.5, "g0")
    accounting.window(0, 5, 0.0, running=1)
    accounting.advance(5)
    assert accounting.engine_seconds(5)[Phase.DECODE] == 2 * 2.5


def test_a_gap_in_the_readings_is_not_idle_time_of_an_engine_with_requests() -> None:
    accounting = _paged()
    accounting.activity(0, 1, 1.0)
    for second in range(20):
        accounting.window(second, second + 1, running=1)
    accounting.tell(20, busy_ratio=1.0)
    accounting.window(20, 20.5, running=1)
    accounting.advance(20.5)
    assert accounting.engine_seconds(21)[Phase.PREFILL] == 2
    assert Reason.HOST_GAP not in accounting.reasons(Use.IDLE)


def test_engine_timers_need_no_device_activity() -> None:
    accounting = _paged()
    accounting.use(Method.ENGINE_TIMERS, 0)
    accounting.window(0, 2, 0.5, busy=1.0, method=Method.ENGINE_TIMERS, prefill_tokens=7)
    accounting.advance(2)
    assert accounting.seconds() == {"prefill": 0.5, "decode": 0.5, "idle": 1.0}
    assert accounting.tokens(2) == {Phase.PREFILL: 7, Phase.DECODE: 0}


def test_busy_time_beyond_the_window_is_clipped() -> None:
    accounting = _paged()
    accounting.window(0, 1, busy=5.0)
    accounting.advance(1)
    assert accounting.seconds() == {"prefill": 1.0}


def test_a_gap_between_pages_is_unobserved() -> None:
    accounting = _paged()
    accounting.window(0, 1, busy=1.0)
    accounting.window(9, 10, busy=1.0)
    accounting.advance(10)
    assert accounting.seconds() == {"prefill": 2.0, "unobserved": 8.0}


def test_pages_that_stop_hold_the_watermark_for_thirty_seconds_only() -> None:
    accounting = _paged()
    accounting.window(0, 1, busy=1.0)
    accounting.advance(30)
    assert accounting.watermark() == 1.0
    accounting.advance(32)
    assert accounting.watermark() == 26.0
    assert accounting.seconds() == {"prefill": 1.0, "unobserved": 25.0}


def test_devices_that_stop_reporting_do_not_hold_the_watermark_for_ever() -> None:
    accounting = _paged()
    for second in range(40):
        accounting.window(second, second + 1, running=1)
        accounting.advance(second + 1)
    assert accounting.watermark() == 25.0
    assert accounting.seconds() == {"unobserved": 25.0}


def test_a_repeated_window_is_accounted_once() -> None:
    accounting = _paged()
    for _ in range(2):
        accounting.window(0, 1, busy=0.5, prefill_tokens=3)
    accounting.advance(1)
    assert accounting.seconds() == {"prefill": 0.5, "idle": 0.5}
    assert accounting.tokens(1)[Phase.PREFILL] == 3
    assert accounting.late(1) == 1


def test_windows_of_a_source_not_in_use_are_ignored() -> None:
    accounting = NodeAccounting()
    accounting.engine()
    accounting.window(0, 1, busy=1.0)
    accounting.use(Method.ROLE, 0)
    accounting.window(0, 1, busy=1.0)
    accounting.advance(10)
    assert "prefill" not in accounting.seconds()


def test_a_change_from_page_to_steps_accounts_no_second_twice() -> None:
    accounting, reporter = _paged(), StepReporter()
    accounting.window(0, 1, 1.0, busy=1.0, running=1)
    accounting.use(Method.STEPS, 1)
    accounting.beat(reporter, 1)
    accounting.step(reporter, reporter.decode(2.0, 1.5))
    accounting.window(1, 2, 1.0, busy=1.0)
    accounting.beat(reporter, 9)
    accounting.advance(9)
    assert accounting.seconds() == {"prefill": 1.0, "decode": 1.0, "idle": 1.0}
    assert accounting.unbalanced() == []


def test_the_page_is_used_from_where_the_steps_stop() -> None:
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.decode(1.0, 1.0))
    accounting.use(Method.PAGE, 2)
    accounting.window(1, 3, 0.0, busy=0.5, running=1)
    accounting.window(3, 4, 0.0, busy=0.5, running=1)
    accounting.step(reporter, reporter.decode(4.0, 1.0))
    accounting.advance(4)
    assert accounting.seconds() == {"decode": 2.0, "idle": 2.0}
    assert accounting.ledger.engine_accounts(ns(4))[0].method is Method.PAGE


def test_time_without_reports_before_a_source_change_is_unobserved() -> None:
    """A2: it is not known what ran in it; that is not idle, with or without pending work."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine()
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.decode(1.0, 1.0))
    accounting.use(Method.PAGE_CPU, 12)
    accounting.window(12, 13, busy=0.5, method=Method.PAGE_CPU)
    accounting.use(Method.STEPS, 23)
    accounting.step(reporter, reporter.decode(24.0, 1.0))
    accounting.beat(reporter, 30)
    accounting.advance(30)
    assert accounting.seconds() == {"decode": 2.0, "prefill": 0.5, "idle": 0.5, "unobserved": 21.0}
    assert accounting.unbalanced() == []


@pytest.mark.parametrize("method", [Method.PAGE, Method.ENGINE_TIMERS])
def test_a_window_updates_the_fast_gauges(method: Method) -> None:
    accounting = _paged()
    accounting.use(method, 0)
    accounting.window(0, 1, 0.5, busy=0.5, method=method, running=1)
    gpus, window_seconds = accounting.ledger.fast_gauges(ns(1))
    assert {g.phase: g.gpus for g in gpus} == {Phase.PREFILL: 0.25, Phase.DECODE: 0.25}
    assert window_seconds == 1.0


RATIOS = st.lists(st.floats(0, 1), min_size=3, max_size=3)


@given(st.lists(RATIOS, min_size=1, max_size=4))
def test_the_mean_of_devices_keeps_their_sum(ratios: list[list[float]]) -> None:
    devices = [
        [ActivitySample(i * 100, (i + 1) * 100, ratio) for i, ratio in enumerate(of)]
        for of in ratios
    ]
    mean = mean_activity(devices)
    assert all(0 <= sample.busy_ratio <= 1 for sample in mean)
    total = sum(sum(of) for of in ratios)
    assert sum(s.busy_ratio for s in mean) * len(ratios) == pytest.approx(total, abs=1e-9)
