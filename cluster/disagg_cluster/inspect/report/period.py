"""The span of time that a report is about, and the equal buckets that it is cut into."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from disagg_exporter.errors import DisaggError

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_BUCKETS_SECONDS = (60, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_MOST_BUCKETS = 180


class PeriodError(DisaggError):
    """A span of time that is none, or that no report can be about."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Period:
    """From `start_seconds` to `end_seconds` (Unix time), in whole buckets.

    Buckets begin and end at multiples of their length, so that one of a day is a day in UTC.
    """

    start_seconds: int
    end_seconds: int
    bucket_seconds: int

    @property
    def ends(self) -> range:
        """When each bucket ends."""
        first = self.start_seconds + self.bucket_seconds
        return range(first, self.end_seconds + 1, self.bucket_seconds)

    @property
    def length_seconds(self) -> int:
        """How long all of it is."""
        return self.end_seconds - self.start_seconds


def parse_since(text: str) -> int:
    """Seconds of `7d`, `36h`, `90m` or `2w`.

    Raises:
        PeriodError: It is none of these, shorter than ten minutes or longer than two years.
    """
    found = re.fullmatch(r"(\d{1,5})([mhdw])", text)
    if found is None:
        raise PeriodError(f"{text!r} is no span of time: give one such as 7d, 36h or 90m")
    seconds = int(found[1]) * _UNITS[found[2]]
    if not 600 <= seconds <= 2 * 366 * 86400:
        raise PeriodError(f"{text} is too short or too long: ten minutes to two years")
    return seconds


def period_until(now_seconds: float, since_seconds: int) -> Period:
    """The period of at least `since_seconds` that ends with the last whole bucket."""
    bucket = next(
        (each for each in _BUCKETS_SECONDS if since_seconds / each <= _MOST_BUCKETS),
        -(-since_seconds // (_MOST_BUCKETS * 86400)) * 86400,
    )
    end = int(now_seconds // bucket) * bucket
    return Period(end - -(-since_seconds // bucket) * bucket, end, bucket)


def utc(seconds: float) -> str:
    """A Unix time as people write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
