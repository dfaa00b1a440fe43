from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.landing.charts import area, line, spark
from disagg_exporter.landing.history import AccountHistory, HourBins
from disagg_exporter.landing.track import Track
from disagg_exporter.model import (
    SLICE_NS_PER_GPU_SECOND,
    Cell,
    Device,
    DeviceAccount,
    Reason,
    Role,
    Snapshot,
    Use,
)

HOUR = 3600


def account(gpu: str, at: int, prefill: float, decode: float, start: int = 0) -> DeviceAccount:
    cells = {Cell(Role.MIXED, Use.PREFILL): prefill, Cell(Role.MIXED, Use.DECODE): decode}
    cells[Cell(Role.MIXED, Use.IDLE, Reason.NO_ENGINE)] = at - start - prefill - decode
    return DeviceAccount(
        Device(gpu, 0, "H100", gpu),
        Role.MIXED,
        start * 10**9,
        at * 10**9,
        {cell: round(seconds * SLICE_NS_PER_GPU_SECOND) for cell, seconds in cells.items()},
    )


def lived(seconds: int, share: float = 0.5) -> AccountHistory:
    history = AccountHistory()
    for at in range(1, seconds + 1):
        accounts = (account("GPU-a", at, at * share, 0.0), account("GPU-b", at, 0.0, at * share))
        history.remember(Snapshot(at * 10**9, 0.0, at * 10**9, accounts=accounts))
    return history


def test_the_node_is_the_sum_of_its_devices_and_each_bin_all_of_its_time() -> None:
    bins = lived(600).hour.node(12)

    assert bins is not None
    assert bins.end_seconds - bins.begin_seconds == 599
    assert len(bins.shares) == 12
    for shares in bins.shares:
        assert shares == pytest.approx((0.25, 0.25, 0.5, 0.0, 0.0))


def test_each_device_has_a_separate_hour() -> None:
    history = lived(60)

    bins = history.hour.device(account("GPU-b", 60, 0.0, 30.0), 4)

    assert bins is not None
    assert bins.shares[-1] == pytest.approx((0.0, 0.5, 0.5, 0.0, 0.0))
    assert history.hour.device(account("GPU-c", 60, 0.0, 0.0), 4) is None


def test_a_reset_device_reduces_nothing_of_the_node() -> None:
    history = AccountHistory()
    for at in range(1, 21):
        again = account("GPU-a", at, 0.0, at / 2) if at < 11 else account("GPU-a", at, 0, 0, 10)
        history.remember(Snapshot(at * 10**9, 0.0, 0, accounts=(again,)))

    bins = history.hour.node(2)

    assert bins is not None
    assert all(share is not None and min(share) >= 0 for share in bins.shares)


def test_no_history_is_shown_before_enough_data() -> None:
    assert AccountHistory().hour.node(10) is None
    assert lived(3).hour.node(10) is None


def test_history_is_bounded_to_an_hour() -> None:
    track = Track(1)
    for at in range(0, 3 * HOUR):
        track.add(float(at), (float(at),))

    begin, end = track.begin_seconds, track.end_seconds
    assert end == 3 * HOUR - 1
    assert begin is not None
    assert HOUR <= end - begin <= HOUR + 700
    assert track.at(end - HOUR + 5) == (end - HOUR + 5,)
    assert track.at(0.0) is None


@given(st.lists(st.floats(0.1, 30.0), min_size=2, max_size=80), st.floats(0, 1))
def test_linear_growth_is_interpolated_between_rows(gaps: list[float], where: float) -> None:
    track, at = Track(1), 0.0
    for gap in gaps:
        at += gap
        track.add(at, (2 * at,))

    begin = track.begin_seconds
    assert begin is not None
    asked = begin + where * (at - begin)
    assert track.at(min(asked, at)) == pytest.approx((2 * min(asked, at),))


BINS = HourBins(0.0, 30.0, ((0.5, 0.25, 0.25, 0.0, 0.0), None, (0.0, 1.0, 0.0, 0.0, 0.0)))


def test_an_area_has_a_gap_where_nothing_is_known() -> None:
    svg = area(BINS, 100)

    assert '<path d="M0 50.0L1 50.0L1 100.0L0 100.0Z" class="prefill"/>' in svg
    assert "M0 25.0L1 25.0L1 50.0L0 50.0ZM2 0.0L3 0.0L3 100.0L2 100.0Z" in svg
    assert "style=" not in svg


def test_a_sparkline_shows_the_phases_only() -> None:
    assert "idle" not in spark(BINS, 18)


def test_a_line_breaks_where_nothing_is_known_and_is_none_without_values() -> None:
    assert 'd="M0 50.0L1 0.0M3 100.0"' in line((1.0, 2.0, None, 0.0), 30)
    assert line((None, None), 30) == line((0.0, 0.0), 30) == line((), 30) == ""
