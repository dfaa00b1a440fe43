"""The campaign that kills the daemon every 11 s: which GPU-seconds it can tell of afterwards."""

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
_SETTLE_SECONDS, _BOOKED_SECONDS = 3.0, 60.0
_WATERMARK = "disagg_gpu_watermark_timestamp_seconds"
PHASES = ("prefill", "decode")


def measure(seed: str, kills: int) -> dict[str, Any]:
    """Kill as often, and compare what the page tells with the wall and the engines' totals."""
    with scene(f"{seed}-coverage", 1) as here, contextlib.ExitStack() as stack:
        beside = None
        if shutil.which("prometheus"):
            beside = stack.enter_context(
                prometheus_beside(here.node.daemon, here.folder, SCRAPE_SECONDS)
            )
        return measure_on(here, kills, beside)


def measure_on(here: Scene, kills: int, prometheus: str | None) -> dict[str, Any]:
    """See `measure`; `prometheus` is the address of one that scrapes the node."""
    began, began_seconds = settled(here), time.time()
    for _ in range(kills):
        here.rest(EVERY_SECONDS * (0.9 + 0.2 * here.chance.random()))
        here.kill_daemon()
        here.rest(3.0 * here.chance.random())
        here.next_daemon()
        # How long it takes to start is the machine's: it is killed so long after it was there.
        here.watch.until(lambda _page: True, 60.0)
    here.watch.until(here.all_ready, 60.0)
    ended = settled(here)
    covered = between(began, ended)
    bad = judge_coverage(covered)
    whole = Observed(
        well_seconds=0.0,
        lost=len(here.clients.failures),
        answered=here.clients.completed,
        back=tuple(sorted(here.watch.back)),
        doubled=tuple(sorted(here.watch.doubled)),
    )
    # What was seen is of all kills together: it is written down once.
    first = {"observed": asdict(whole), "bad": [*bad, *judge(Expected(), whole)]}
    rest = {"observed": asdict(Observed(well_seconds=0.0)), "bad": []}
    outcomes = [
        {"fault": "killed every 11 s", "round": number, **(rest if number else first)}
        for number in range(kills)
    ]
    told = {} if prometheus is None else {"by_prometheus": increase_told(prometheus, began_seconds)}
    return {"covered": asdict(covered), "outcomes": outcomes, **told}


def increase_told(prometheus: str, began_seconds: float) -> float:
    """How many GPU-seconds a second and GPU Prometheus has seen since then: 1 if all.

    As `increase()` counts, resets included, but between the first scrape and the last: at so few
    of them, what it extrapolates to the ends of its window would be most of what is measured.
    """
    window = int(time.time() - began_seconds)
    names = "disagg_gpu_phase_seconds_total|disagg_gpu_unobserved_seconds_total"
    asked = urllib.parse.urlencode({"query": f'{{__name__=~"{names}"}}[{window}s]'})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{asked}", timeout=30) as answer:
        series = json.load(answer)["data"]["result"]
    told, gpus, times = 0.0, set[str](), set[float]()
    for each in series:
        gpus.add(each["metric"]["gpu"])
        values = [float(value) for _, value in each["values"]]
        times |= {float(at) for at, _ in each["values"]}
        told += sum(b - a if b >= a else b for a, b in itertools.pairwise(values))
    return told / (len(gpus) * (max(times) - min(times)))


def settled(here: Scene) -> tuple[Samples, dict[str, float]]:
    """The page and the engines' totals once nothing is under way and all of it is booked."""
    with here.clients.paused():
        here.rest(_SETTLE_SECONDS)
        done_seconds = time.time()

        def booked(page: Samples) -> bool:
            marks = [mark for series, mark in page.items() if series.startswith(_WATERMARK)]
            return bool(marks) and min(marks) > done_seconds

        if here.watch.until(booked, _BOOKED_SECONDS) is None:
            raise RuntimeError(f"nothing is booked in {_BOOKED_SECONDS:g} s of rest")
        return here.watch.page, totals(here)


def totals(here: Scene) -> dict[str, float]:
    """What the engines say that they have done, by phase, of those that have never died."""
    done = dict.fromkeys(PHASES, 0.0)
    for name in here.ports:
        with contextlib.suppress(OSError):
            told = json.loads(Path(here.totals(name)).read_text(encoding="utf-8"))
            for phase in PHASES:
                done[phase] += told[phase]
    return done


def between(
    began: tuple[Samples, dict[str, float]], ended: tuple[Samples, dict[str, float]]
) -> Covered:
    """What has grown from one settled page to another."""

    def by(name: str, having: str = "") -> float:
        return grown(began[0], ended[0], name, having)

    phases = "disagg_gpu_phase_seconds_total"
    unobserved = by("disagg_gpu_unobserved_seconds_total")
    return Covered(
        wall=by(_WATERMARK),
        told=by(phases) + unobserved,
        unobserved=unobserved,
        engines={phase: ended[1][phase] - began[1][phase] for phase in PHASES},
        phases={phase: by(phases, f'phase="{phase}"') for phase in PHASES},
    )


def grown(before: Samples, after: Samples, name: str, having: str = "") -> float:
    """What the series of a name, those with such a label, have grown by from page to page."""
    return sum(
        value - before.get(series, 0.0)
        for series, value in after.items()
        if series.startswith(f"{name}{{") and having in series
    )
