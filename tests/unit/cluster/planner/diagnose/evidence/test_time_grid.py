"""Samples on a time grid: resets, gaps and absurd values never count as load."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.diagnose.evidence.time_grid import (
    SampleBatch,
    TimeGrid,
    grid_of,
    late_seconds,
)

GRID = TimeGrid(60.0, 10.0, 6)
TIMES = np.arange(0.0, 61.0, 10.0)


def series(values: object, times: object = TIMES) -> ScrapedSeries:
    return ScrapedSeries({}, np.asarray(times, float), np.asarray(values, float))


def gains(*rows: ScrapedSeries) -> list[list[float]]:
    return SampleBatch(GRID).gains(rows).tolist()


def test_the_gain_of_a_counter_is_its_increase() -> None:
    assert gains(series([0, 1, 3, 6, 10, 15, 21])) == [[1, 2, 3, 4, 5, 6]]


def test_a_falling_counter_was_reset_to_zero() -> None:
    assert gains(series([5, 6, 7, 1, 2, 3, 4])) == [[1, 1, 1, 1, 1, 1]]


def test_gains_across_a_long_gap_are_unknown() -> None:
    found = gains(series([0, 1, 6], [0.0, 10.0, 60.0]))

    assert found[0][0] == 1
    assert np.isnan(found[0][1:]).all()


def test_bins_end_with_each_series_own_last_sample() -> None:
    assert gains(series([0, 1, 3, 6, 10, 15, 21], TIMES - 4.0)) == [[1, 2, 3, 4, 5, 6]]


def test_compared_nodes_have_bins_that_end_at_the_same_time() -> None:
    # A gain of one a second, and of two from 30 s on.
    early, late = (10 + np.maximum(times, 2 * times - 30.0) for times in (TIMES - 4.0, TIMES))

    found = SampleBatch(GRID, 4.0).gains([series(early, TIMES - 4.0), series(late)])

    assert found[0].tolist() == [10, 10, 10, 16, 20, 20]
    assert np.isnan(found[1, 0])
    assert found[1, 1:].tolist() == [10, 10, 16, 20, 20]


def test_the_lag_is_that_of_the_node_scraped_first_unless_it_is_gone() -> None:
    ends = [60.0, 57.0, 53.0, 41.0]
    window = SeriesWindow(
        0.0, 61.0, {"up": tuple(series(np.ones(7), TIMES - 60 + e) for e in ends)}
    )

    assert late_seconds(window, GRID, "up", "down") == 7.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -3.0, 1e18])
def test_impossible_samples_are_skipped_and_counted(value: float) -> None:
    batch = SampleBatch(GRID)

    found = batch.gains([series([0, 1, 2, value, 4, 5, 6])])

    assert found.tolist() == [[1, 1, 1, 1, 1, 1]]
    assert sum(batch.rejected.values()) == 1


def test_a_gauge_keeps_its_last_value_for_a_limited_time() -> None:
    found = SampleBatch(GRID).levels([series([7.0, 8.0], [0.0, 10.0])])

    assert found[0, :4].tolist() == [8.0, 8.0, 8.0, 8.0]
    assert np.isnan(found[0, 4:]).all()


def test_a_grid_has_a_bin_for_each_scrape() -> None:
    window = SeriesWindow(0.0, 61.0, {"up": (series(np.ones(7)),)})

    assert grid_of(window, "up") == TimeGrid(60.0, 10.0, 6)


def test_without_two_scrapes_there_is_no_grid() -> None:
    window = SeriesWindow(0.0, 61.0, {"up": (series([1.0], [60.0]),)})

    assert grid_of(window, "up") is None
    assert grid_of(window, "down") is None
