"""Golden vectors of engines that tell sums over a stretch of time, and of changes of source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.intervals.unattributed import ActivitySample, mean_activity
from disagg_exporter.model import Method, Phase, Reason, Role, Use
from support.books import Books, Teller, ns


def _paged(gpus: int = 1, role: Role = Role.MIXED) -> Books:
    books = Books(gpus)
    books.engine(role=role)
    books.use(Method.PAGE, 0)
    return books


def _rest(books: Books, start: int) -> None:
    """Let the devices and the engine rest until 5 s: activity is committed by whole blocks."""
    for gpu in books.gpus:
        books.activity(start + 0.1, 5, 0.0, gpu)
    books.window(start, 5, running=0)
    books.advance(5)


def test_a_page_window_holds_the_device_as_long_as_it_was_active() -> None:
    books = _paged()
    books.activity(0, 2, 0.6)
    books.window(0, 1, 0.25, running=1)
    books.window(1, 2, 0.75, running=0)
    _rest(books, 2)
    assert books.seconds() == {"prefill": 0.6, "decode": 0.6, "idle": 3.8}
    assert books.reasons(Use.IDLE) == {Reason.HOST_GAP: 0.4, Reason.NO_REQUEST: 3.4}
    assert books.engine_seconds(5) == {Phase.PREFILL: 0.6, Phase.DECODE: 0.6}


def test_activity_that_the_engine_explains_is_no_strangers() -> None:
    books = _paged()
    books.activity(0, 1, 0.0)
    books.window(0, 1)
    books.activity(1, 2, 0.5)
    books.window(1, 2, running=1)
    books.advance(12)
    assert books.reasons(Use.UNATTRIBUTED) == {}


def test_a_sample_that_ends_after_its_page_is_booked_with_the_next() -> None:
    books = _paged()
    books.activity(0, 2, 1.0)
    books.window(0, 0.95, 1.0, running=1)
    books.window(0.95, 1.95, 1.0, running=1)
    books.window(1.95, 2, 1.0, running=1)
    _rest(books, 2)
    assert books.seconds() == {"prefill": 2.0, "idle": 3.0}


def test_an_engine_on_four_devices_uses_their_activity_together() -> None:
    books = _paged(gpus=4)
    for gpu, ratio in zip(books.gpus, (1.0, 0.5, 0.5, 0.0), strict=True):
        books.activity(0, 5, ratio / 5, gpu)
    books.window(0, 5, 0.0, running=1)
    books.advance(5)
    assert books.engine_seconds(5) == {Phase.PREFILL: 0.0, Phase.DECODE: 2.0}


def test_a_device_of_the_group_that_tells_nothing_is_no_device_at_rest() -> None:
    """Invariant c: one of two cannot be read; the other says what the group did."""
    books = _paged(gpus=2)
    books.activity(0, 5, 0.5, "g0")
    books.window(0, 5, 0.0, running=1)
    books.advance(5)
    assert books.engine_seconds(5)[Phase.DECODE] == 2 * 2.5


def test_a_hole_in_the_readings_is_no_rest_of_an_engine_that_promises_work() -> None:
    books = _paged()
    books.activity(0, 1, 1.0)
    for second in range(20):
        books.window(second, second + 1, running=1)
    books.tell(20, busy_ratio=1.0)
    books.window(20, 20.5, running=1)
    books.advance(20.5)
    assert books.engine_seconds(21)[Phase.PREFILL] == 2
    assert Reason.HOST_GAP not in books.reasons(Use.IDLE)


def test_timers_of_the_engine_itself_need_no_activity() -> None:
    books = _paged()
    books.use(Method.ENGINE_TIMERS, 0)
    books.window(0, 2, 0.5, busy=1.0, method=Method.ENGINE_TIMERS, prefill_tokens=7)
    books.advance(2)
    assert books.seconds() == {"prefill": 0.5, "decode": 0.5, "idle": 1.0}
    assert books.tokens(2) == {Phase.PREFILL: 7, Phase.DECODE: 0}


def test_more_busy_time_than_there_was_is_clipped_to_the_window() -> None:
    books = _paged()
    books.window(0, 1, busy=5.0)
    books.advance(1)
    assert books.seconds() == {"prefill": 1.0}


def test_a_hole_between_pages_is_nobodys() -> None:
    books = _paged()
    books.window(0, 1, busy=1.0)
    books.window(9, 10, busy=1.0)
    books.advance(10)
    assert books.seconds() == {"prefill": 2.0, "unobserved": 8.0}


def test_pages_that_stop_hold_the_watermark_for_thirty_seconds_only() -> None:
    books = _paged()
    books.window(0, 1, busy=1.0)
    books.advance(30)
    assert books.watermark() == 1.0
    books.advance(32)
    assert books.watermark() == 26.0
    assert books.seconds() == {"prefill": 1.0, "unobserved": 25.0}


def test_devices_that_stop_telling_do_not_hold_the_watermark_for_ever() -> None:
    books = _paged()
    for second in range(40):
        books.window(second, second + 1, running=1)
        books.advance(second + 1)
    assert books.watermark() == 25.0
    assert books.seconds() == {"unobserved": 25.0}


def test_the_same_window_twice_is_booked_once() -> None:
    books = _paged()
    for _ in range(2):
        books.window(0, 1, busy=0.5, prefill_tokens=3)
    books.advance(1)
    assert books.seconds() == {"prefill": 0.5, "idle": 0.5}
    assert books.tokens(1)[Phase.PREFILL] == 3
    assert books.late(1) == 1


def test_windows_of_a_source_that_is_not_in_use_are_nobodys() -> None:
    books = Books()
    books.engine()
    books.window(0, 1, busy=1.0)
    books.use(Method.ROLE, 0)
    books.window(0, 1, busy=1.0)
    books.advance(10)
    assert "prefill" not in books.seconds()


def test_steps_take_over_from_the_page_and_no_second_is_booked_twice() -> None:
    books, teller = _paged(), Teller()
    books.window(0, 1, 1.0, busy=1.0, running=1)
    books.use(Method.STEPS, 1)
    books.beat(teller, 1)
    books.step(teller, teller.decode(2.0, 1.5))
    books.window(1, 2, 1.0, busy=1.0)
    books.beat(teller, 9)
    books.advance(9)
    assert books.seconds() == {"prefill": 1.0, "decode": 1.0, "idle": 1.0}
    assert books.unbalanced() == []


def test_the_page_takes_over_where_the_steps_fall_silent() -> None:
    books, teller = Books(), Teller()
    books.engine()
    books.beat(teller, 0)
    books.step(teller, teller.decode(1.0, 1.0))
    books.use(Method.PAGE, 2)
    books.window(1, 3, 0.0, busy=0.5, running=1)
    books.window(3, 4, 0.0, busy=0.5, running=1)
    books.step(teller, teller.decode(4.0, 1.0))
    books.advance(4)
    assert books.seconds() == {"decode": 2.0, "idle": 2.0}
    assert books.ledger.engine_accounts(ns(4))[0].method is Method.PAGE


def test_the_silence_before_another_source_takes_over_is_nobodys() -> None:
    """A2: nobody knows what was done in it; that is not rest, be there a promise or none."""
    books, teller = Books(), Teller()
    books.engine()
    books.beat(teller, 0)
    books.step(teller, teller.decode(1.0, 1.0))
    books.use(Method.PAGE_CPU, 12)
    books.window(12, 13, busy=0.5, method=Method.PAGE_CPU)
    books.use(Method.STEPS, 23)
    books.step(teller, teller.decode(24.0, 1.0))
    books.beat(teller, 30)
    books.advance(30)
    assert books.seconds() == {"decode": 2.0, "prefill": 0.5, "idle": 0.5, "unobserved": 21.0}
    assert books.unbalanced() == []


@pytest.mark.parametrize("method", [Method.PAGE, Method.ENGINE_TIMERS])
def test_a_window_tells_the_fast_gauges(method: Method) -> None:
    books = _paged()
    books.use(method, 0)
    books.window(0, 1, 0.5, busy=0.5, method=method, running=1)
    gpus, window_seconds = books.ledger.fast_gauges(ns(1))
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
