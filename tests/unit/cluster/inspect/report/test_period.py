from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.inspect.report.past import Period, PeriodError, parse_since, period_until, utc


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604_800), ("36h", 129_600), ("90m", 5400), ("2w", 1_209_600)]
)
def test_spans_are_read(text: str, seconds: int) -> None:
    assert parse_since(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1.5h", "7 d", "9m", "9999w", "1y"])
def test_invalid_spans_are_refused(text: str) -> None:
    with pytest.raises(PeriodError) as caught:
        parse_since(text)
    assert caught.value.exit_code == 2


def test_a_week_is_divided_into_whole_hours_of_utc() -> None:
    period = period_until(1_763_571_234.5, 604_800)

    assert period == Period(1_763_568_000 - 604_800, 1_763_568_000 + 0, 3600)
    assert utc(period.end_seconds) == "2025-11-19 16:00"


@given(st.floats(1e9, 2e9), st.integers(600, 2 * 366 * 86400))
def test_a_period_is_whole_buckets_of_at_least_the_requested_length(now: float, since: int) -> None:
    period = period_until(now, since)

    assert period.end_seconds <= now < period.end_seconds + period.bucket_seconds
    assert since <= period.length_seconds < since + period.bucket_seconds
    assert period.start_seconds % period.bucket_seconds == 0
    assert len(period.ends) * period.bucket_seconds == period.length_seconds
    assert period.ends[-1] == period.end_seconds
    assert len(period.ends) <= 182
