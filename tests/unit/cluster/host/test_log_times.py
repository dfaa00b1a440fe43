from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from disagg_cluster.host.log_times import written_at

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("INFO 01-01 00:05:01 [loggers.py:1] ready", NOW.replace(minute=5, second=1)),
        (
            "(APIServer pid=7) WARNING 12-31 23:59:58 [x.py:1] late",
            datetime(2025, 12, 31, 23, 59, 58, tzinfo=NOW.tzinfo),
        ),
        ("[2026-01-01 00:05:01] INFO: Ready", NOW.replace(minute=5, second=1)),
        ("2026-01-01T00:05:01,123 INFO x", NOW.replace(minute=5, second=1)),
        ("2025-12-31T22:05:01.5Z INFO dynamo", datetime(2025, 12, 31, 22, 5, 1, tzinfo=UTC)),
        (
            "INFO 01-01 00:05:01 [weights.py:3] saved at 2024-05-01 12:00:00",
            NOW.replace(minute=5, second=1),
        ),
        (
            "2026-01-01 00:05:01 INFO 12-31 23:59:58 x",
            NOW.replace(minute=5, second=1),
        ),
        ("Traceback (most recent call last):", None),
        ("INFO 13-41 99:05:01 [x] no such day", None),
        ("2026-99-01 10:00:00 no such month", None),
    ],
)
def test_the_time_of_a_line_is_parsed_in_each_engines_format(
    line: str, at: datetime | None
) -> None:
    assert written_at(line, NOW) == at
