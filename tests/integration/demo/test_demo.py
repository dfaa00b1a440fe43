"""What `disagg-node demo` shows, and that nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.demo.nodefile import WORKERS
from disagg_cluster.demo.sweeper import belonging_to
from disagg_cluster.prometheus.prometheus_api import PrometheusError
from disagg_exporter.http.client.scrape import fetch
from support.prometheus_query import query
from support.running_demo import RunningDemo
from support.running_node import DISAGG_NODE, wait_for

pytestmark = pytest.mark.prometheus


def samples(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the page's samples by name."""
    page = fetch(url, 5.0).decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_demo_shows_both_phases_on_tagged_gpus_and_ends_cleanly(demo: RunningDemo) -> None:
    """Issue 'Foundation', Shows it 1 and the recorded ratio: one run, checked in all respects."""
    page_url, prometheus_url = demo.page_url(), demo.prometheus_url()

    def both_phases() -> dict[str, list[tuple[dict[str, str], float]]] | None:
        page = samples(page_url)
        busy = {"prefill": 0.0, "decode": 0.0}
        for labels, value in page.get("disagg_gpu_phase_seconds_total", []):
            busy[labels["phase"]] = busy.get(labels["phase"], 0.0) + value
        return page if min(busy["prefill"], busy["decode"]) > 1 else None

    page = wait_for(both_phases, "both phases to move")

    roles = [labels["role"] for labels, _ in page["disagg_gpu_assignment_info"]]
    assert sorted(roles) == ["decode"] * 4 + ["prefill"] * 4
    assert page["disagg_simulated_info"]
    starts = {k["gpu"]: v for k, v in page["disagg_gpu_start_timestamp_seconds"]}
    marks = {k["gpu"]: v for k, v in page["disagg_gpu_watermark_timestamp_seconds"]}
    assert len(starts) == 8
    for gpu, start in starts.items():
        parts = [
            value
            for name in ("disagg_gpu_phase_seconds_total", "disagg_gpu_unobserved_seconds_total")
            for labels, value in page[name]
            if labels["gpu"] == gpu
        ]
        assert sum(parts) == pytest.approx(marks[gpu] - start, abs=1e-3)

    def recorded() -> list[tuple[dict[str, str], float]] | None:
        try:
            # Its first evaluations may see decode move before prefill does.
            return query(prometheus_url, "cluster:disagg_prefill_decode_ratio:ratio_rate1m > 0")
        except PrometheusError:
            return None  # it is still starting

    [(labels, _)] = wait_for(recorded, "Prometheus to record the ratio")
    assert labels["cluster"] == "demo"
    fast = query(prometheus_url, "cluster:disagg_busy_gpus:sum")
    assert {labels["phase"] for labels, _ in fast} == {"prefill", "decode"}

    once = [*DISAGG_NODE, "top", "--prometheus", prometheus_url, "--once", "--json"]
    view = json.loads(subprocess.run(once, capture_output=True, check=True).stdout)
    assert [gpu["role"] for gpu in view["gpus"]] == ["prefill"] * 4 + ["decode"] * 4
    assert view["nodes"][0]["gpus"] == 8
    assert min(view["time"]["seconds"][phase] for phase in ("prefill", "decode")) > 0

    assert demo.end() == 0
    assert demo.lines[-1]["simulated"] is True
    assert all(line["gpus"] == 8 for line in demo.lines)
    assert "Traceback" not in demo.said
    with pytest.raises(ProcessLookupError):
        os.kill(demo.process.pid, 0)


def test_a_killed_demo_leaves_no_process_and_no_file() -> None:
    killed = RunningDemo()
    killed.prometheus_url()
    folder = Path(killed.address(r"--run-dir (\S+)")).parent
    wait_for(lambda: len(belonging_to(folder)) > WORKERS, "engines and Prometheus")

    killed.end(signal.SIGKILL)

    wait_for(lambda: not folder.exists(), "the end of the folder")
    assert not belonging_to(folder)
