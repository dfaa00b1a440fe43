from __future__ import annotations

import pytest

from disagg_exporter.capacity.curves.utilization import WINDOW_NS, LoadTally, LoadWindow

SECOND = 1_000_000_000


def test_a_window_sums_what_there_is_of_the_last_minute() -> None:
    window = LoadWindow()
    for _ in range(30):
        window.add(LoadTally(SECOND, prefill_tokens=100, batch_ns=5 * SECOND))

    assert window.total == LoadTally(30 * SECOND, 3_000, 150 * SECOND)


def test_tallies_older_than_a_minute_are_removed() -> None:
    window = LoadWindow()
    for second in range(200):
        window.add(LoadTally(SECOND, prefill_tokens=second))

    assert window.total == LoadTally(WINDOW_NS, sum(range(140, 200)))


def test_the_oldest_stretch_counts_by_its_part_within_the_window() -> None:
    """A prefill of 10 s that began 65 s ago is half in the window."""
    window = LoadWindow()
    window.add(LoadTally(10 * SECOND, prefill_tokens=8_000))
    for _ in range(55):
        window.add(LoadTally(SECOND))

    assert window.total.length_ns == WINDOW_NS
    assert window.total.prefill_tokens == pytest.approx(4_000)


def test_a_stretch_longer_than_a_minute_counts_as_its_mean() -> None:
    window = LoadWindow()
    window.add(LoadTally(120 * SECOND, prefill_tokens=1_200))

    assert window.total.prefill_tokens == pytest.approx(600)
