"""Accounting that goes on in another daemon: what an absence costs, and what it must not."""

from __future__ import annotations

import pytest

from disagg_exporter.model import EngineState, Phase, Reason, Use
from support.books import Books, Teller


def decoding(books: Books, teller: Teller, start: float, end: float, elapsed: float = 0.1) -> None:
    """Let an engine decode without a rest over a stretch, each step told as it ends."""
    for number in range(round((end - start) / elapsed)):
        books.step(teller, teller.decode(start + (number + 1) * elapsed, elapsed, running=1))


def unheard(teller: Teller, start: float, end: float, elapsed: float = 0.1) -> None:
    """Let an engine decode while nobody listens."""
    for number in range(round((end - start) / elapsed)):
        teller.decode(start + (number + 1) * elapsed, elapsed, running=1)


@pytest.mark.parametrize("absent", [0.02, 30.0, 600.0, 86400.0])
def test_what_a_busy_engine_did_without_a_daemon_is_told_by_its_totals(absent: float) -> None:
    books, teller = Books(), Teller()
    books.engine()
    decoding(books, teller, 0, 20)
    books.advance(20)
    back = 20 + absent
    unheard(teller, 20, back, absent / 10)

    after = books.successor(20, back)
    after.advance(back)
    assert after.watermark() == books.watermark()
    decoding(after, teller, back, back + 10)
    after.advance(back + 10)

    assert after.unbalanced() == []
    assert after.watermark() == back + 4
    assert after.seconds() == {"decode": back + 4}
    assert after.engine_seconds(back + 10) == {Phase.PREFILL: 0, Phase.DECODE: back + 4}
    assert after.lost(back + 10) == 0
    decoding(after, teller, back + 10, back + 20)
    after.advance(back + 20)
    assert after.tokens(back + 20)[Phase.DECODE] == 200 + 10 + 140


def test_time_of_an_absence_that_no_total_claims_is_unobserved() -> None:
    books, teller = Books(), Teller()
    books.engine()
    decoding(books, teller, 0, 20)
    books.beat(teller, 20)
    books.advance(20)
    unheard(teller, 25, 30, 1.0)

    after = books.successor(20, 50)
    after.beat(teller, 51)
    after.advance(51)
    after.beat(teller, 61)
    after.advance(61)

    assert after.seconds() == {"decode": 25, "unobserved": 26, "idle": 4}
    assert after.reasons(Use.UNOBSERVED) == {Reason.NO_DAEMON: 26}


def test_rest_that_the_daemon_before_saw_stays_idle() -> None:
    """Of the time below the watermark's delay only the successor can say so."""
    books, teller = Books(), Teller()
    books.engine()
    books.step(teller, teller.decode(10, 1))
    books.beat(teller, 20)
    books.advance(20)

    after = books.successor(20, 30)
    after.beat(teller, 30.5)
    after.beat(teller, 40)
    after.advance(40)

    assert after.seconds() == {"decode": 1, "idle": 23, "unobserved": 10}
    assert after.reasons(Use.IDLE) == {Reason.NO_REQUEST: 23}


def test_a_device_without_an_engine_was_unobserved_while_no_daemon_ran() -> None:
    books = Books()
    books.activity(0, 20, 0.0)
    books.advance(20)

    after = books.successor(20, 50)
    after.activity(50, 60, 0.0)
    after.advance(60)

    assert after.reasons(Use.UNOBSERVED) == {Reason.NO_DAEMON: 30}
    assert after.reasons(Use.IDLE) == {Reason.NO_ENGINE: 20}
    assert after.watermark() == 50


def test_an_engine_that_died_meanwhile_ends_with_the_absence() -> None:
    books, teller = Books(), Teller()
    books.engine(pids=(1,))
    decoding(books, teller, 0, 20)
    books.advance(20)

    after = books.successor(20, 50, pids=())
    after.engine(since=52, state=EngineState.STARTING, pids=(2,))
    after.advance(63)

    assert after.seconds() == {"decode": 20, "unobserved": 32, "idle": 5}
    assert after.reasons(Use.UNOBSERVED) == {Reason.NO_DAEMON: 30, Reason.NO_READING: 2}
    assert after.reasons(Use.IDLE) == {Reason.STARTING: 5}
    assert after.unbalanced() == []
