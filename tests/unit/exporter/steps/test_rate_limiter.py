from __future__ import annotations

from disagg_exporter.steps.rate_limiter import RateLimiter
from support.accounting import ns


class Clock:
    """Nanoseconds that a test moves."""

    def __init__(self) -> None:
        self.now_ns = ns(100)

    def __call__(self) -> int:
        return self.now_ns


def test_the_limiter_allows_its_burst_and_then_one_per_interval() -> None:
    clock = Clock()
    limiter = RateLimiter(2.0, 2, clock)

    assert [limiter.take() for _ in range(3)] == [True, True, False]
    clock.now_ns += ns(0.5)
    assert [limiter.take() for _ in range(2)] == [True, False]


def test_an_unused_limiter_accumulates_no_more_than_its_burst() -> None:
    clock = Clock()
    limiter = RateLimiter(2.0, 2, clock)
    clock.now_ns += ns(1000)

    assert [limiter.take() for _ in range(3)] == [True, True, False]


def test_spending_beyond_the_burst_is_paid_back_before_the_next() -> None:
    clock = Clock()
    limiter = RateLimiter(10.0, clock_ns=clock)

    limiter.spend(15)
    clock.now_ns += ns(0.5)
    assert limiter.available() == 0
    clock.now_ns += ns(0.25)
    assert limiter.available() == 2
