"""The series of a situation: casts simulated on the real node code, and copied to many nodes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from bench.diagnosis.recorder import Recorder, Scraping
from grafana.pictures.situations import Cast, Copies, Situation

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.diagnose import DiagnosisState, diagnose
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.service.diagnosis_rows import write_diagnoses
from disagg_cluster.simulator.cluster.spec import ClusterSpec, Reporting
from disagg_cluster.simulator.load import Lengths
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.metrics.table import FAMILIES
from disagg_exporter.model import GpuPrice

_OFFSET_SECONDS = 1.75e9
_SHIFTS = 20
"""Copies of a cast lag behind it by up to so many scrapes, so that they are not all alike."""
_TIMES = "_timestamp_seconds"
_ROUND_SECONDS = 60.0
_TARGETS = Targets(ttft_seconds=0.5, itl_seconds=0.05)
_NAMES = {family.name: family.labels for family in FAMILIES}


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its name and labels as text, and the scrapes of it by rising Unix time."""

    name: str
    labels: str
    times: tuple[float, ...]
    values: tuple[float, ...]


def lines(situation: Situation, seconds: float, end_seconds: int) -> Iterator[Line]:
    """All series of a situation over so many seconds until then."""
    before = 0
    for copies in situation.copies:
        for number in range(copies.count):
            yield from _copy(situation, copies, before + number, seconds, end_seconds)
        before += copies.count


def _copy(
    situation: Situation, copies: Copies, number: int, seconds: float, end_seconds: int
) -> Iterator[Line]:
    lag = (number * 7 % _SHIFTS) * situation.scrape_seconds if copies.count > 1 else 0
    spare = _SHIFTS * situation.scrape_seconds if copies.count > 1 else 0
    window = record(copies.cast, seconds + spare, situation.scrape_seconds)
    moved = end_seconds - window.now_seconds + lag
    for name, family in (*window.families.items(), *_by_prometheus(window).items()):
        later = moved if name.endswith(_TIMES) else 0.0
        for series in family:
            if series.labels.get("node") in copies.cast.hidden:
                continue
            times = tuple(float(time) + moved for time in series.times_seconds)
            kept = sum(time <= end_seconds for time in times)
            yield Line(
                name,
                _labels(dict(series.labels), copies.cluster, number),
                times[:kept],
                tuple(float(value) + later for value in series.values[:kept]),
            )


def _by_prometheus(window: SeriesWindow) -> dict[str, list[ScrapedSeries]]:
    """What a Prometheus adds of each scrape; how long it took is not known here."""
    sizes = Counter(
        (series.labels["node"], float(time))
        for family in window.families.values()
        for series in family
        if "node" in series.labels
        for time in series.times_seconds
    )
    added: dict[str, list[ScrapedSeries]] = {"up": [], "scrape_samples_scraped": []}
    for build in window.of("disagg_build_info"):
        labels = {key: build.labels[key] for key in ("cluster", "node", "instance", "job")}
        times = build.times_seconds
        counts = np.array([sizes[labels["node"], float(time)] for time in times], dtype=float)
        added["up"].append(ScrapedSeries(labels, times, np.ones(len(times))))
        added["scrape_samples_scraped"].append(ScrapedSeries(labels, times, counts))
    return added


def _labels(labels: dict[str, str], cluster: str, number: int) -> str:
    """The labels of a copy: its nodes and GPUs are others, its engines have the same names."""
    node = labels.get("node", "")
    named = labels | {"cluster": cluster}
    if node:
        named |= {"node": f"{node}-{number}", "instance": f"{node}-{number}:9847"}
    if "gpu" in named:
        named["gpu"] = named["gpu"].replace(f"GPU-{node}-", f"GPU-{node}-{number}-")
    return ",".join(f'{key}="{value}"' for key, value in named.items() if value)


@functools.cache
def record(cast: Cast, seconds: float, scrape_seconds: int) -> SeriesWindow:
    """Simulate a cast and scrape its nodes."""
    simulation = Simulation(
        # KV that nobody fetches must not fill the cache while transfers fail.
        ClusterSpec(cast.engines, lease_seconds=20.0),
        cast.load,
        lengths=Lengths(prompt_spread=0.6, output_spread=0.6),
        faults=cast.faults,
        reporting=Reporting(
            single_steps=False,
            page_seconds=5.0,
            sweep_seconds=1.0,
            wall_offset_seconds=_OFFSET_SECONDS,
        ),
        seed=7,
    )
    scraping = Scraping(
        scrape_seconds=float(scrape_seconds),
        fronts=cast.fronts,
        books_energy=True,
        gpu_price=GpuPrice("USD", 2.5),
        by_page=cast.by_page,
    )
    recorder = Recorder(
        simulation, scraping, wall_offset_seconds=_OFFSET_SECONDS, end_seconds=seconds
    )
    told: dict[tuple[str, tuple[str, ...]], list[tuple[float, float]]] = {}
    past: DiagnosisState | None = None
    for window in recorder.rounds(_ROUND_SECONDS):
        if cast.diagnosed:
            diagnoses, past = diagnose(window, _TARGETS, past)
            rows = MetricRows()
            write_diagnoses(rows, diagnoses)
            for name, samples in rows.samples.items():
                for labels, value in samples.items():
                    told.setdefault((name, labels), []).append((window.now_seconds, value))
    families = dict(window.families)
    for (name, labels), values in told.items():
        series = ScrapedSeries(dict(zip(_NAMES[name], labels, strict=True)), *np.array(values).T)
        families[name] = (*families.get(name, ()), series)
    return replace(window, families=families)
