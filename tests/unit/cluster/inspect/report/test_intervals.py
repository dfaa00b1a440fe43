from __future__ import annotations

from collections.abc import Callable

from disagg_cluster.inspect.report.intervals import intervals

HOUR = 3600


def hours(*counts: float) -> dict[int, float]:
    """Samples in each of some hours, by their ends; hours without any are left out."""
    return {(n + 1) * HOUR: count for n, count in enumerate(counts) if count}


Read = Callable[[int, int], float | None]


def at(*seconds: float) -> Read:
    """The interval that is read in each of these hours."""
    return lambda start, end: seconds[end // HOUR - 1] if end - start == HOUR else None


def found(counts: dict[int, float], read: Read) -> list[float]:
    return list(intervals(counts, 15.0, HOUR, read).values())


def test_gaps_do_not_change_the_interval() -> None:
    assert found(hours(240, 100, 0, 60, 240), at(15, 15, 15, 15, 15)) == [15.0] * 4


def test_a_longer_interval_holds_as_far_as_hours_have_as_few_samples() -> None:
    counts = hours(240, 240, 60, 60, 58, 240)

    assert found(counts, at(15, 15, 60, 60, 60, 15)) == [15, 15, 60, 60, 60, 15]


def test_a_gap_before_the_change_does_not_hide_it() -> None:
    counts = hours(240, 180, 240, 120, 120)

    assert found(counts, at(15, 15, 15, 30, 30)) == [15, 15, 15, 30, 30]


def test_a_second_change_is_found() -> None:
    counts = hours(60, 60, 240, 30, 30)

    assert found(counts, at(60, 60, 15, 120, 120)) == [60, 60, 15, 120, 120]


def test_many_gaps_are_read_a_few_times_only() -> None:
    reads: list[int] = []

    def read(_: int, end: int) -> float:
        reads.append(end)
        return 15.0

    found(hours(240, *[100, 240] * 40), read)

    assert len(reads) <= 4


def test_a_longer_interval_among_longer_ones_is_found() -> None:
    counts = hours(240, 240, 120, 120, 60, 60)

    assert found(counts, at(15, 15, 30, 30, 60, 60)) == [15, 15, 30, 30, 60, 60]


def test_short_buckets_are_read_by_the_half_hour_within_those_with_as_few_samples() -> None:
    """Every 15 s until 1,000 s, within the fourth bucket, and every minute since."""
    reads: list[tuple[int, int]] = []

    def read(start: int, end: int) -> float:
        reads.append((start, end))
        return 60.0 if start >= 900 else 15.0

    counts = {300: 20.0, 600: 20.0, 900: 20.0, 1200: 10.0} | dict.fromkeys(
        range(1500, 6001, 300), 5.0
    )
    seconds = intervals(counts, 15.0, 300, read)

    assert reads[0] == (900, 2700)
    assert all(seconds[end] * counts[end] == 300 for end in counts)
    assert seconds[900] == 15.0
    assert seconds[6000] == 60.0
