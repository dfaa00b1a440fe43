"""What a daemon costs a node: `make bench-node`, or with `--minutes 30` for its memory.

A real daemon process; NVML read ten times a second through the real binding and a stub driver with
eight GPUs; sixteen engines (child processes of the daemon, two on each GPU) that serve a page of
200 KB, scraped once a second, and send 2,000 step records a second in all over the steps sockets.
CPU is the kernel's account of the daemon alone. On a shared machine CPU time remains comparable
within one run; wall time (the freshness) does not.

The last part scrapes the daemon, node_exporter and nvitop-exporter once a second while four engines
work in bursts. Freshness is the time from the end of the first step of a burst until a scrape shows
`disagg_node_busy_gpus` above 0.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.node import scrapes, usage
from bench.node.rig import ROOT, Rig, read_page, running_rig
from bench.report import finish

STEPS_PER_SECOND = 2000.0
BARS = {
    "cpu_with_steps_percent": 8.0,
    "cpu_without_steps_percent": 3.0,
    "rss_mebibytes": 96.0,
    "rss_growth_mebibytes_per_hour": 4.0,
    "scrape_ratio_to_node_exporter": 1.0,
    "freshness_p95_seconds": 1.5,
}
REPORT = Path("bench/out/node.json")
_WARM_SECONDS, _LENGTH_SECONDS, _SETTLE_SECONDS, _SCRAPES = 15.0, 30.0, 10.0, 75
_BECOMING_WATCHED_SECONDS = 5.0


def main() -> int:
    """Measure, print and write the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=_LENGTH_SECONDS / 60)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    packages = [str(ROOT / "scripts/system-packages"), scrapes.NODE_EXPORTER, "gcc"]
    subprocess.run(packages, check=True)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bn-") as name, running_rig(Path(name)) as rig:
        figures |= _with_steps(rig, options.minutes * 60)
        figures |= _watched(rig)
        figures |= _without_steps(rig)
        figures |= _scraped(rig)
    how = {"minutes": options.minutes}
    return finish(REPORT, figures, BARS, as_json=options.json, **how)


def _with_steps(rig: Rig, seconds: float) -> dict[str, float | None]:
    """Return CPU and memory while all engines take steps."""
    rig.set_rate(STEPS_PER_SECOND)
    time.sleep(_WARM_SECONDS)
    steps, began, before = _steps(rig), time.monotonic(), usage.cpu_seconds(rig.pid)
    memory: list[tuple[float, float]] = []
    while time.monotonic() < began + seconds:
        time.sleep(1)
        memory.append((time.monotonic() - began, usage.resident_bytes(rig.pid) / 2**20))
    spent, passed = usage.cpu_seconds(rig.pid) - before, time.monotonic() - began
    # Memory that grows by what is learned in the first minutes is no leak.
    late = [point for point in memory if point[0] >= passed / 3]
    return {
        "cpu_with_steps_percent": 100 * spent / passed,
        "steps_per_second": (_steps(rig) - steps) / passed,
        "rss_mebibytes": max(size for _, size in memory),
        # Over less than ten minutes the slope only reflects the allocator's last block.
        "rss_growth_mebibytes_per_hour": usage.slope(late) * 3600 if passed >= 600 else None,
    }


def _watched(rig: Rig) -> dict[str, float]:
    """Return CPU while all engines take steps, with a scrape every second included."""
    _scrape_each_second(rig, _BECOMING_WATCHED_SECONDS)
    began, before = time.monotonic(), usage.cpu_seconds(rig.pid)
    _scrape_each_second(rig, _LENGTH_SECONDS)
    spent, passed = usage.cpu_seconds(rig.pid) - before, time.monotonic() - began
    return {"cpu_with_steps_scraped_each_second_percent": 100 * spent / passed}


def _scrape_each_second(rig: Rig, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        rig.page()
        # There is no event to await: Prometheus scrapes by the clock, and CPU is measured over it.
        time.sleep(1)


def _without_steps(rig: Rig) -> dict[str, float]:
    """Return CPU while all engines are idle: devices and pages alone."""
    rig.set_rate(0)
    time.sleep(_SETTLE_SECONDS)
    began, before = time.monotonic(), usage.cpu_seconds(rig.pid)
    time.sleep(_LENGTH_SECONDS)
    spent, passed = usage.cpu_seconds(rig.pid) - before, time.monotonic() - began
    return {"cpu_without_steps_percent": 100 * spent / passed}


def _scraped(rig: Rig) -> dict[str, float]:
    """Return the cost of a scrape beside the peers', and how soon one a second shows a step."""
    seen: dict[str, list[tuple[int, float]]] = {}
    rig.set_rate(STEPS_PER_SECOND, bursts=True)
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(scrapes.node_exporter())
        nvitop = stack.enter_context(scrapes.nvitop_exporter(rig))
        ours = scrapes.OursCosted(rig)
        due = time.monotonic()
        for _ in range(_SCRAPES):
            due = max(due + 1, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
            body = ours.scrape()
            at_ns = time.monotonic_ns()
            for series, value in read_page(gzip.decompress(body)).items():
                if series.startswith("disagg_node_busy_gpus{"):
                    seen.setdefault(series, []).append((at_ns, value))
            node.scrape()
            nvitop.scrape()
        series_count = len(read_page(gzip.decompress(ours.scrape())))
        costs = {"ours": ours.cost, "node_exporter": node.cost, "nvitop": nvitop.cost}
        ours.close()
    delays = _delays(rig.burst_ends_ns(), seen)
    return {
        **{f"scrape_{who}_milliseconds": cost.milliseconds for who, cost in costs.items()},
        "scrape_ratio_to_node_exporter": costs["ours"].seconds / costs["node_exporter"].seconds,
        "scrape_ratio_to_nvitop": costs["ours"].seconds / costs["nvitop"].seconds,
        "series": series_count,
        "bursts": len(delays),
        "freshness_p50_seconds": statistics.median(delays),
        "freshness_p95_seconds": statistics.quantiles(delays, n=20)[-1],
    }


def _delays(
    ends_ns: dict[tuple[str, str], list[int]], seen: dict[str, list[tuple[int, float]]]
) -> list[float]:
    """Return the times from the end of each burst's first step to the first scrape showing it."""
    delays = []
    for labels, ends in ends_ns.items():
        shown_by = [series for series in seen if all(label in series for label in labels)]
        looks = [look for series in shown_by for look in seen[series]]
        for end_ns in ends:
            after = [at_ns for at_ns, value in looks if at_ns >= end_ns and value > 0]
            if after and any(at_ns < end_ns for at_ns, _ in looks):
                delays.append((min(after) - end_ns) / 1e9)
    if len(delays) < 2:
        raise SystemExit(f"no bursts were observed; the page has {sorted(seen)}")
    return delays


def _steps(rig: Rig) -> float:
    counted = "disagg_engine_steps_total{"
    return sum(value for series, value in rig.page().items() if series.startswith(counted))


if __name__ == "__main__":
    sys.exit(main())
