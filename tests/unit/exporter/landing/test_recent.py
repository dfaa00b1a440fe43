"""The initial data of a live view: devices' seconds at even times."""

from __future__ import annotations

import json

import pytest

from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.landing.recent import recent_json
from disagg_exporter.model import SLICE_NS_PER_GPU_SECOND
from support.snapshots import golden_snapshot


def test_before_anything_was_measured_there_is_nothing() -> None:
    assert json.loads(recent_json(AccountHistory(), None)) == {"devices": []}


def test_the_last_moment_is_the_watermark_with_the_values_of_the_page() -> None:
    snapshot, history = golden_snapshot(), AccountHistory()
    history.remember(snapshot)

    told = json.loads(recent_json(history, snapshot))

    by_gpu = {account.device.gpu: account for account in snapshot.accounts}
    assert by_gpu
    for device in told["devices"]:
        account = by_gpu[device["gpu"]]
        watermark = account.watermark_ns / 1e9 + snapshot.wall_offset_seconds
        assert device["at_seconds"] == [pytest.approx(watermark, abs=1e-3)]
        for use, values in device["seconds"].items():
            from_page = sum(
                value for cell, value in account.slice_ns.items() if cell.use.value == use
            )
            assert 0 <= from_page / SLICE_NS_PER_GPU_SECOND - values[0] < 1e-3 + 1e-9
