"""What our rules would have recorded, by promtool, for a time before they were installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from grafana.pictures import history
from grafana.pictures.recording import Line

from support.prometheus_query import query

pytestmark = pytest.mark.prometheus

_STEP_SECONDS, _SECONDS, _END_SECONDS = 15, 1200, 1_795_800_000
_YOUNG_SECONDS = 600
_NODES = ("node:disagg_committed:ratio_rate1m", "node:disagg_committed:ratio_rate5m")
# What they are computed from.
_BEFORE = (
    "node_role_model_gpu:disagg_phase_gpu_seconds:rate1m",
    "node_role_model_namespace_gpu:disagg_phase_gpu_seconds:rate5m",
    "node:disagg_counted:ratio_rate1m",
    "node:disagg_counted:ratio_rate5m",
)


def test_rules_can_be_backfilled_for_a_range_in_which_a_node_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that has the name of what it is taken from at times only would be two series.

    promtool loses the earlier of them, or refuses it.
    """
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    chosen = [rule for rule in history.rules() if rule["record"] in (*_NODES, *_BEFORE)]
    monkeypatch.setattr(history, "rules", lambda: chosen)
    series = [*node("old", _SECONDS), *node("young", _YOUNG_SECONDS)]
    data = tmp_path / "data"

    history.write(
        series,
        data,
        end_seconds=_END_SECONDS,
        seconds=_SECONDS,
        scrape_seconds=_STEP_SECONDS,
    )

    with history.served(data, _STEP_SECONDS) as server:
        url = f"http://127.0.0.1:{server.port}"
        for name in _NODES:
            for ago in (0, _YOUNG_SECONDS - 120):
                found = query(url, f"{name} @ {_END_SECONDS - ago}")
                assert {of["node"] for of, _ in found} == {"old", "young"}


def node(name: str, seconds: int) -> Iterator[Line]:
    """Two GPUs, one of them busy, scraped for so long."""
    times = tuple(float(_END_SECONDS - ago) for ago in range(seconds, -1, -_STEP_SECONDS))
    of_node = f'cluster="c",node="{name}",role="mixed",model_name="m",gpu_name="H200"'
    yield Line("disagg_node_role_gpus", of_node, times, (2.0,) * len(times))
    for phase in ("prefill", "idle"):
        counted = tuple(float(time - times[0]) for time in times)
        labels = f'{of_node},engine_namespace="",phase="{phase}"'
        yield Line("disagg_node_phase_seconds_total", labels, times, counted)
