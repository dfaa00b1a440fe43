"""The cost of past load, forecasts and plans at 1,000 engines, and at ten times as many.

`make bench-planner-scale`. A real Prometheus and a real VictoriaMetrics hold 14 days of what our
rules record of 1,000 engines that serve 20 models, and the engines' current step metrics; the
VictoriaMetrics holds ten such clusters. A separate process reads everything, forecasts a day of
each model's requests, prompts and outputs, and plans each cluster. Bars: 60 s and 500 MiB a
cluster, ten times that for ten clusters. The wall time includes the server's, the memory is the
process's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path

from bench.planner_scale.current import now_json_lines, now_openmetrics
from bench.planner_scale.engines import engine_samples
from bench.planner_scale.recorded import (
    DAY_SECONDS,
    DAYS,
    RecordedSeries,
    json_lines,
    openmetrics_day,
    recorded,
)
from bench.report import Figures, finish
from bench.rollup.server import promtool, running

from support.victoria_metrics import victoria_metrics

REPORT = Path("bench/out/planner_scale.json")
CLUSTERS = 10
WALL_BAR_SECONDS, MEMORY_BAR_MIB = 60.0, 500.0
_ONE, _OF_TEN, _TEN = (
    "Prometheus, 1 cluster",
    "VictoriaMetrics, 1 of 10",
    "VictoriaMetrics, 10 clusters",
)
_LINES_A_REQUEST = 200


def main() -> int:
    """Build the histories, measure, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=int, default=CLUSTERS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.clusters < 1:
        parser.error(f"--clusters {options.clusters}: at least 1 is needed")
    # Blocks are cut at even hours.
    end = int(time.time()) // 7200 * 7200
    start = end - DAYS * DAY_SECONDS
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="planner-scale-") as name:
        folder = Path(name)
        series = list(recorded("cluster-0"))
        megabytes = _write_blocks(series, start, folder)
        with running(folder / "prometheus" / "data") as server:
            found[_ONE] = _ask(f"http://127.0.0.1:{server.port}", end)
        with victoria_metrics(folder / "above") as (url, _):
            for number in range(options.clusters):
                cluster = f"cluster-{number}"
                _import(url, json_lines(recorded(cluster), start))
                _import(url, now_json_lines(engine_samples(cluster), end))
            _open(f"{url}/internal/force_flush").close()
            found[_OF_TEN] = _ask(url, end, "cluster-0")
            found[_TEN] = _ask(url, end)
    figures: dict[str, float | None] = {"recorded, MB a day": megabytes / DAYS}
    for who, measured in found.items():
        figures |= {f"{who}: {what}": value for what, value in measured.items()}
    bars = {
        f"{who}: {what}": bar * (options.clusters if who == _TEN else 1)
        for who in found
        for what, bar in (
            ("wall s", WALL_BAR_SECONDS),
            ("MiB", MEMORY_BAR_MIB),
            ("minutes missing", 0.0),
            ("left out", 0.0),
        )
    }
    return finish(REPORT, figures, bars, _table, as_json=options.json, clusters=options.clusters)


def _write_blocks(series: list[RecordedSeries], start: int, folder: Path) -> float:
    """Make blocks of all days; return their size in megabytes."""
    data = folder / "prometheus" / "data"
    data.mkdir(parents=True)

    def day(number: int) -> None:
        text = folder / f"day-{number}.om"
        with text.open("w", encoding="utf-8") as file:
            file.writelines(openmetrics_day(series, start, number))
            if number == DAYS - 1:
                end = start + DAYS * DAY_SECONDS
                file.writelines(now_openmetrics(engine_samples("cluster-0"), end))
            file.write("# EOF\n")
        promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(data))
        text.unlink()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(day, range(DAYS)))
    return sum(file.stat().st_size for file in data.rglob("*") if file.is_file()) / 1e6


def _import(url: str, lines: Iterator[bytes]) -> None:
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) == _LINES_A_REQUEST:
            _open(f"{url}/api/v1/import", b"".join(batch)).close()
            batch.clear()
    _open(f"{url}/api/v1/import", b"".join(batch)).close()


def _open(url: str, body: bytes | None = None) -> HTTPResponse:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer = opener.open(urllib.request.Request(url, data=body), timeout=120)
    assert isinstance(answer, HTTPResponse)
    return answer


def _ask(url: str, end: int, cluster: str | None = None) -> dict[str, float]:
    argv = [sys.executable, "-m", "bench.planner_scale.reader", url, str(end)]
    done = subprocess.run(
        [*argv, *([cluster] if cluster else [])], check=True, stdout=subprocess.PIPE, text=True
    )
    measured: dict[str, float] = json.loads(done.stdout)
    sys.stderr.write(f"{url} {cluster or 'all'}: {measured}\n")
    return measured


def _table(figures: Figures, met: dict[str, bool]) -> str:
    columns = (
        "planned",
        "forecasts",
        "read s",
        "forecast s",
        "plan s",
        "wall s",
        "CPU s",
        "MiB",
    )
    lines = [f"{'':30}" + "".join(f"{column:>11}" for column in columns)]
    for who in (_ONE, _OF_TEN, _TEN):
        row = "".join(f"{figures[f'{who}: {column}'] or 0:11.1f}" for column in columns)
        lines.append(f"{who:30}{row}")
    missed = [key for key, is_met in met.items() if not is_met]
    lines.append(f"recorded: {figures['recorded, MB a day']:.1f} MB a day and cluster")
    lines.append(f"MISSED: {', '.join(missed)}" if missed else "all bars met")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
