"""How the bench of the plugin judges the page of a flooded daemon."""

from __future__ import annotations

import pytest
from bench.plugin.flood import is_committed, losses

DEVICE_WEIGHT = 3 / 7
MARKS = {
    'disagg_gpu_watermark_timestamp_seconds{gpu="a"}': 101.0,
    'disagg_gpu_watermark_timestamp_seconds{gpu="b"}': 100.5,
}
PAGE = {
    'disagg_engine_steps_total{engine="a"}': 900.0,
    'disagg_engine_steps_total{engine="b"}': 100.0,
    'disagg_lost_records_total{engine="a"}': 1.0,
    'disagg_engine_step_seconds_total{engine="a"}': 70.0,
    'disagg_engine_gpu_seconds_total{engine="a",phase="prefill"}': 10.0,
    'disagg_engine_gpu_seconds_total{engine="a",phase="decode"}': 20.0,
}


def test_time_is_committed_once_the_last_device_is_beyond_it() -> None:
    assert is_committed(MARKS, 100.0)
    assert not is_committed(MARKS, 100.5)


def test_a_stale_page_which_shows_no_marks_commits_nothing() -> None:
    assert not is_committed({'disagg_worker_restarts_total{worker="a"}': 0.0}, 100.0)


def test_accounted_seconds_are_compared_with_steps_by_the_weight_of_their_device() -> None:
    found = losses(PAGE, DEVICE_WEIGHT)

    assert found["flood_lost_records_percent"] == pytest.approx(0.1)
    assert found["flood_lost_seconds_percent"] == pytest.approx(0.0)
    short = PAGE | {'disagg_engine_step_seconds_total{engine="a"}': 140.0}
    assert losses(short, DEVICE_WEIGHT)["flood_lost_seconds_percent"] == pytest.approx(50.0)
