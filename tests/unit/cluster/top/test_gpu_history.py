"""Timelines of devices: windows, slots, resets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.top.readings.values import GpuReading
from disagg_cluster.top.view.gpu_history import SLOTS, GpuTimeline, history, total
from disagg_cluster.top.view.values import HistorySlot

T0 = 1_000_000.0


def look(at: float, prefill: float, idle: float, start: float | None = None) -> GpuReading:
    seconds = {"prefill": prefill, "decode": 0.0, "idle": idle}
    return GpuReading("", "GPU-0", seconds=seconds, watermark=at, start=start)


def timeline(*looks: GpuReading) -> GpuTimeline:
    line = GpuTimeline()
    for each in looks:
        line.add(each)
    return line


def test_the_last_minute_is_the_increase_since_the_reading_a_minute_ago() -> None:
    line = timeline(look(T0, 0, 0), look(T0 + 60, 0, 60), look(T0 + 120, 45, 75))

    time = line.last(60)

    assert time is not None
    assert (time.window_seconds, time.seconds["prefill"], time.occupancy_ratio) == (60, 45, 0.75)


def test_a_single_reading_gives_the_time_since_the_start() -> None:
    line = timeline(look(T0 + 3600, 900, 2700, start=T0))

    time = line.last(60)

    assert time is not None
    assert (time.window_seconds, time.occupancy_ratio) == (3600, 0.25)
    assert history([line]) == (None,) * SLOTS


def test_the_second_reading_replaces_the_time_since_the_start() -> None:
    line = timeline(look(T0 + 3600, 900, 2700, start=T0), look(T0 + 3605, 905, 2700))

    time = line.last(60)

    assert time is not None
    assert (time.window_seconds, time.occupancy_ratio) == (5, 1)


def test_a_counter_reset_restarts_the_timeline() -> None:
    line = timeline(look(T0, 50, 50), look(T0 + 5, 1, 4))

    assert line.last(60) is None


def test_a_device_without_committed_seconds_has_no_time() -> None:
    assert timeline(GpuReading("", "GPU-0")).last(60) is None


def test_history_is_empty_for_unknown_slots_and_ends_with_the_newest() -> None:
    line = timeline(look(T0, 0, 0), look(T0 + 5, 5, 0), look(T0 + 10, 5, 5))

    slots = history([line])

    assert slots[-2:] == (HistorySlot(1, 0), HistorySlot(0, 0))
    assert set(slots[:-2]) == {None}


def test_the_history_of_a_lagging_device_is_aligned_with_the_others() -> None:
    slow = timeline(look(T0, 0, 0), look(T0 + 5, 5, 0))

    assert history([slow], T0 + 10)[-2:] == (HistorySlot(1, 0), None)


@given(st.lists(st.tuples(st.floats(1, 30), st.floats(0, 1)), min_size=2, max_size=40))
def test_the_seconds_of_a_window_sum_to_its_length(steps: list[tuple[float, float]]) -> None:
    at, busy, rest = T0, 0.0, 0.0
    line = timeline(look(at, busy, rest))
    for seconds, share in steps:
        at, busy, rest = at + seconds, busy + share * seconds, rest + (1 - share) * seconds
        line.add(look(at, busy, rest))

    time = line.last(60)

    assert time is not None
    assert sum(time.seconds.values()) == pytest.approx(time.window_seconds, abs=1e-6)
    assert time.window_seconds == pytest.approx(min(60, at - T0), abs=1e-6)


def test_the_total_of_devices_is_the_sum_of_their_seconds() -> None:
    one = timeline(look(T0, 0, 0), look(T0 + 60, 60, 0)).last(60)
    other = timeline(look(T0, 0, 0), look(T0 + 60, 0, 60)).last(60)
    assert one is not None
    assert other is not None

    both = total([one, other])

    assert both is not None
    assert both.ratios["prefill"] == 0.5
    assert total([]) is None
