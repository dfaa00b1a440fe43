from __future__ import annotations

import pytest

from disagg_exporter.http.server.scrape_rate import ScrapeRate


@pytest.mark.parametrize(
    ("asked", "now", "often"),
    [
        ([], 0.0, False),
        ([1.0, 2.0], 2.0, False),
        ([1.0, 2.0, 3.0], 3.0, True),
        ([1.0, 2.0, 3.0], 11.0, True),
        ([1.0, 2.0, 3.0], 11.1, False),
        ([0.0, 15.0, 30.0, 45.0], 45.0, False),
        ([0.0, 1.0, 15.0, 16.0, 30.0, 31.0], 31.0, False),
        ([0.0, 100.0, 101.0, 102.0], 102.0, True),
    ],
    ids=[
        "nobody", "twice", "every second", "until just now", "no longer",
        "a usual Prometheus", "two of them", "after a rest",
    ],
)  # fmt: skip
def test_scrapes_every_few_seconds_are_a_high_rate(
    asked: list[float], now: float, often: bool
) -> None:
    rate = ScrapeRate()
    for when in asked:
        rate.record(when)

    assert rate.is_high(now) is often
