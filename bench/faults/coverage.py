"""The campaign that kills the daemon every 11 s: how many GPU-seconds are accounted for."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import time
import urllib.parse
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.faults.fault import Covered, Expected, Observed, judge, judge_coverage
from bench.faults.scene import Scene, scene
from bench.faults.watch import Samples

from support.running_node import prometheus_beside

EVERY_SECONDS = 11.0
SCRAPE_SECONDS = 15.0
_SETTLE_SECONDS, _COMMIT_SECONDS = 3.0, 60.0
_WATERMARK = "disagg_gpu_watermark_timestamp_seconds"
PHASES = ("prefill", "decode")


def measure(seed: str, kills: int) -> dict[str, Any]:
    """Kill this often, and compare the page with the wall and the engines' totals."""
    with scene(f"{seed}-coverage", 1) as here, contextlib.ExitStack() as stack:
        beside = None
        if shutil.which("prometheus"):
            beside = stack.enter_context(
                prometheus_beside(here.node.daemon, here.folder, SCRAPE_SECONDS)
            )
        return measure_on(here, kills, beside)


def measure_on(here: Scene, kills: int, prometheus: str | None) -> dict[str, Any]:
    """See `measure`; `prometheus` is the address of a Prometheus that scrapes the node."""
    began, began_seconds = settled(here), time.time()
    for _ in range(kills):
        here.rest(EVERY_SECONDS * (0.9 + 0.2 * here.chance.random()))
        here.kill_daemon()
        here.rest(3.0 * here.chance.random())
        here.next_daemon()
        # Start-up time depends on the machine, so the interval begins when the page is back.
        here.watch.until(lambda _page: True, 60.0)
    here.watch.until(here.all_ready, 60.0)
    ended = settled(here)
    covered = between(began, ended)
    bad = judge_coverage(covered)
    whole = Observed(
        recovered_seconds=0.0,
        lost=len(here.clients.failures),
        answered=here.clients.completed,
        back=tuple(sorted(here.watch.back)),
        doubled=tuple(sorted(here.watch.doubled)),
    )
    # The observations cover all kills together, so they are recorded once.
    first = {"observed": asdict(whole), "bad": [*bad, *judge(Expected(), whole)]}
    rest = {"observed": asdict(Observed(recovered_seconds=0.0)), "bad": []}
    outcomes = [
        {"fault": "killed every 11 s", "round": number, **(rest if number else first)}
        for number in range(kills)
    ]
    by_prometheus = (
        {} if prometheus is None else {"by_prometheus": increase(prometheus, began_seconds)}
    )
    return {"covered": asdict(covered), "outcomes": outcomes, **by_prometheus}


def increase(prometheus: str, began_seconds: float) -> float:
    """Return the GPU-seconds per second and GPU that Prometheus has scraped: 1 if all.

    Counted as by `increase()`, resets included, but between the first and the last scrape: with so
    few scrapes, its extrapolation to the ends of its window would dominate the result.
    """
    window = int(time.time() - began_seconds)
    names = "disagg_gpu_phase_seconds_total|disagg_gpu_unobserved_seconds_total"
    asked = urllib.parse.urlencode({"query": f'{{__name__=~"{names}"}}[{window}s]'})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{asked}", timeout=30) as answer:
        series = json.load(answer)["data"]["result"]
    total, gpus, times = 0.0, set[str](), set[float]()
    for each in series:
        gpus.add(each["metric"]["gpu"])
        values = [float(value) for _, value in each["values"]]
        times |= {float(at) for at, _ in each["values"]}
        total += sum(b - a if b >= a else b for a, b in itertools.pairwise(values))
    return total / (len(gpus) * (max(times) - min(times)))


def settled(here: Scene) -> tuple[Samples, dict[str, float]]:
    """Return the page and the engines' totals once the node is idle and all time is committed."""
    with here.clients.paused():
        here.rest(_SETTLE_SECONDS)
        done_seconds = time.time()

        def committed(page: Samples) -> bool:
            marks = [mark for series, mark in page.items() if series.startswith(_WATERMARK)]
            return bool(marks) and min(marks) > done_seconds

        if here.watch.until(committed, _COMMIT_SECONDS) is None:
            raise RuntimeError(f"time not committed after {_COMMIT_SECONDS:g} s of rest")
        return here.watch.page, totals(here)


def totals(here: Scene) -> dict[str, float]:
    """Return, by phase, the seconds that the engines which have never died report as done."""
    done = dict.fromkeys(PHASES, 0.0)
    for name in here.ports:
        with contextlib.suppress(OSError):
            seconds = json.loads(Path(here.totals(name)).read_text(encoding="utf-8"))
            for phase in PHASES:
                done[phase] += seconds[phase]
    return done


def between(
    began: tuple[Samples, dict[str, float]], ended: tuple[Samples, dict[str, float]]
) -> Covered:
    """Return how much the counters grew from one settled page to another."""

    def by(name: str, having: str = "") -> float:
        return grown(began[0], ended[0], name, having)

    phases = "disagg_gpu_phase_seconds_total"
    unobserved = by("disagg_gpu_unobserved_seconds_total")
    return Covered(
        wall=by(_WATERMARK),
        reported=by(phases) + unobserved,
        unobserved=unobserved,
        engines={phase: ended[1][phase] - began[1][phase] for phase in PHASES},
        phases={phase: by(phases, f'phase="{phase}"') for phase in PHASES},
    )


def grown(before: Samples, after: Samples, name: str, having: str = "") -> float:
    """Return how much the series of a name, with `having` in their labels, grew between pages."""
    return sum(
        value - before.get(series, 0.0)
        for series, value in after.items()
        if series.startswith(f"{name}{{") and having in series
    )
