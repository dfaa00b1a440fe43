from __future__ import annotations

from collections.abc import Callable

from disagg_cluster.inspect.report.intervals import intervals

HOUR = 3600


def hours(*counts: float) -> dict[int, float]:
    """Samples in each of some hours, by their ends; hours without any are left out."""
    return {(n + 1) * HOUR: count for n, count in enumerate(counts) if count}


def at(*seconds: float) -> Callable[[int], float | None]:
    """The interval that is read in each of these hours."""
    return lambda end: seconds[end // HOUR - 1]


def found(counts: dict[int, float], read: Callable[[int], float | None]) -> list[float]:
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

    def read(end: int) -> float:
        reads.append(end)
        return 15.0

    found(hours(240, *[100, 240] * 40), read)

    assert len(reads) <= 4
