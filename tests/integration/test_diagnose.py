"""What a diagnosis reads from a real Prometheus and VictoriaMetrics, and the command on it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from disagg_cluster.planner.diagnose.evidence.series_window import SeriesWindow
from disagg_cluster.planner.diagnose.reading.rolling_series import RollingSeries
from disagg_cluster.planner.diagnose.reading.series_queries import SeriesQueries
from disagg_cluster.prometheus.prometheus_api import Prometheus
from support.backfill import Past, openmetrics, prometheus_with
from support.victoria_metrics import victoria_metrics

pytestmark = pytest.mark.prometheus

SCRAPE_SECONDS = 15
KEPT_SECONDS = 600
FAMILIES = ("disagg_engine_info", "disagg_engine_steps_total", "disagg_gpu_info")
ValuesBySeries = dict[tuple[str, frozenset[tuple[str, str]]], dict[float, float]]


def past_of(end: int) -> tuple[list[Past], range]:
    """Half an hour of two nodes, of which one is gone lately, and of another cluster."""
    begin = end - 1800

    def series(family: str, cluster: str, node: str, until: int = end) -> Past:
        labels = {"cluster": cluster, "node": node, "instance": f"{node}:9847", "engine": "e0"}
        if family == "disagg_engine_info":
            labels |= {"model_name": "llama", "role": "prefill"}
        return Past(family, labels, lambda t: t - begin + 0.25 if t <= until else None)

    several = [
        series(family, cluster, node, until)
        for family in FAMILIES
        for cluster, node, until in (
            ("east", "a", end),
            ("east", "b", end - 300),
            ("west", "c", end),
        )
    ]
    return several, range(begin, end + 1, SCRAPE_SECONDS)


def written(past: list[Past], instants: range, begin: float, end: float) -> ValuesBySeries:
    """What was written of east, in a span."""
    found: ValuesBySeries = {}
    for series in past:
        values = {float(t): series.at(t) for t in instants if begin <= t <= end}
        known = {t: value for t, value in values.items() if value is not None}
        if known and series.labels["cluster"] == "east":
            found[series.name, frozenset(series.labels.items())] = known
    return found


def values_by_series(window: SeriesWindow) -> ValuesBySeries:
    return {
        (family, frozenset(each.labels.items())): dict(
            zip(each.times_seconds.tolist(), each.values.tolist(), strict=True)
        )
        for family, several in window.families.items()
        for each in several
    }


def check(url: str, past: list[Past], instants: range, now: int) -> None:
    """Read once, and again a little later: both times what was written is there, and no more."""
    with closing(Prometheus(url)) as prometheus:
        rolling = RollingSeries(SeriesQueries(prometheus, FAMILIES, "east"), KEPT_SECONDS)
        for moment in (now - 47, now):
            window = rolling.read(float(moment))
            assert values_by_series(window) == written(
                past, instants, moment - KEPT_SECONDS, moment
            )


@pytest.mark.parametrize("flags", [(), ("--query.max-samples=60",)], ids=["free", "limited"])
def test_all_samples_are_read_from_a_prometheus_with_or_without_a_limit(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """Queries to a server that loads 60 samples at most are split into parts."""
    now = int(time.time())
    past, instants = past_of(now)
    with prometheus_with(openmetrics(past, instants), tmp_path, *flags) as url:
        check(url, past, instants, now)
        if not flags:
            command = (sys.executable, "-m", "disagg_cluster.cli", "diagnose", "--prometheus", url)
            done = subprocess.run(
                [*command, "--cluster", "east", "--json"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert (done.returncode, done.stderr) == (0, "")
            (model,) = json.loads(done.stdout)["models"]
            assert (model["cluster"], model["model_name"]) == ("east", "llama")


def test_all_samples_including_the_newest_are_read_from_victoriametrics(tmp_path: Path) -> None:
    """By default it hides the last 30 s from other queries."""
    now = int(time.time())
    past, instants = past_of(now)
    lines = []
    for line in openmetrics(past, instants).splitlines():
        if not line.startswith("#"):
            series, value, seconds = line.rsplit(" ", 2)
            lines.append(f"{series} {value} {int(seconds) * 1000}")
    with victoria_metrics(tmp_path, "-search.latencyOffset=30s") as (url, _):
        body = "\n".join(lines).encode()
        urllib.request.urlopen(f"{url}/api/v1/import/prometheus", data=body, timeout=10).close()
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=10).close()

        check(url, past, instants, now)
