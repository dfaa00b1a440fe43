"""Fourteen days of what our rules record of clusters, to load into a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.history.history_queries import (
    ARRIVALS,
    CACHED_TOKENS,
    CAPACITY_USED,
    ENDS,
    GPU_SECONDS,
    REJECTIONS,
    TOKENS,
)

MODELS = 20
ENGINES = 1000
ENGINES_A_NODE = 8
DAYS = 14
DAY_SECONDS = 86_400
MINUTES = DAYS * 1440
# The second within the minute at which rules are evaluated.
OFFSET_SECONDS = 7
_NODES_SAMPLE_SECONDS = 240


@dataclass(frozen=True, slots=True)
class RecordedSeries:
    """One series: its name, labels, and comma-separated values, `step_seconds` apart."""

    name: str
    labels: dict[str, str]
    values: str
    step_seconds: int


def recorded(cluster: str) -> Iterator[RecordedSeries]:
    """Yield all recorded series of a cluster of 1,000 engines, and its nodes' token counters.

    Those counters have a sample in four minutes only: their presence is checked, they are not read.
    """
    for model in range(MODELS):
        owner = {
            "cluster": cluster,
            "model_name": f"model-{model}",
            "engine_namespace": "serving",
        }
        for name, further, values in _of_model(model):
            yield RecordedSeries(name, {**owner, **further}, values, 60)
    samples = DAYS * DAY_SECONDS // _NODES_SAMPLE_SECONDS
    seldom = ",".join(str(1000 * n) for n in range(samples))
    for node in range(ENGINES // ENGINES_A_NODE):
        for phase in ("prefill", "decode"):
            labels = {"cluster": cluster, "node": f"node-{node}", "role": phase, "phase": phase}
            labels |= {"model_name": f"model-{node % MODELS}", "engine_namespace": "serving"}
            name = "disagg_node_phase_tokens_total"
            yield RecordedSeries(name, labels, seldom, _NODES_SAMPLE_SECONDS)


def openmetrics_day(series: list[RecordedSeries], start_seconds: int, day: int) -> Iterator[str]:
    """Yield one day of series in promtool's format, without the end: by family, then series."""
    family = ""
    for each in sorted(series, key=lambda one: one.name):
        if each.name != family:
            family = each.name
            yield f"# TYPE {family} gauge\n"
        labels = ",".join(f'{key}="{value}"' for key, value in each.labels.items())
        a_day = DAY_SECONDS // each.step_seconds
        begin = start_seconds + OFFSET_SECONDS + day * DAY_SECONDS
        yield "".join(
            f"{family}{{{labels}}} {value} {begin + n * each.step_seconds}\n"
            for n, value in enumerate(each.values.split(",")[day * a_day : (day + 1) * a_day])
        )


def json_lines(series: Iterator[RecordedSeries], start_seconds: int) -> Iterator[bytes]:
    """Yield the series in VictoriaMetrics' import format, a series a line."""

    @cache
    def times(step_seconds: int, count: int) -> str:
        begin = (start_seconds + OFFSET_SECONDS) * 1000
        return ",".join(str(begin + n * step_seconds * 1000) for n in range(count))

    for each in series:
        metric = json.dumps({"__name__": each.name, **each.labels})
        at = times(each.step_seconds, each.values.count(",") + 1)
        yield f'{{"metric":{metric},"values":[{each.values}],"timestamps":[{at}]}}\n'.encode()


@cache
def _of_model(model: int) -> tuple[tuple[str, dict[str, str], str], ...]:
    """Return what is recorded of a model: name, further labels, values."""
    load = _load(model)
    rows = (
        (TOKENS.record, {"phase": "prefill"}, load * 900),
        (TOKENS.record, {"phase": "decode"}, load * 200),
        (GPU_SECONDS.record, {"phase": "prefill"}, load * 0.4),
        (GPU_SECONDS.record, {"phase": "decode"}, load * 1.2),
        (ARRIVALS.record, {}, load),
        (REJECTIONS.record, {}, load * 0.001),
        (ENDS.record, {}, load * 0.999),
        (CACHED_TOKENS.record, {}, load * 300),
        (CAPACITY_USED.record, {"role": "prefill"}, load / load.max() * 0.8),
        (CAPACITY_USED.record, {"role": "decode"}, load / load.max() * 1.02),
        (CAPACITY_USED.record, {"role": "mixed"}, load / load.max() * 0.5),
    )
    return tuple((name, further, _text(values)) for name, further, values in rows)


def _load(model: int) -> NDArray[np.float64]:
    """Return requests a second, with a model's own daily and weekly pattern, and bursts."""
    rng = np.random.default_rng(model)
    minutes = np.arange(MINUTES)
    day = 1 + 0.6 * np.sin(2 * np.pi * (minutes / 1440 + rng.random()))
    week = np.where(minutes // 1440 % 7 < 5, 1.0, 0.6)
    noise = rng.gamma(20, 1 / 20, MINUTES)
    load: NDArray[np.float64] = rng.uniform(1, 50) * day * week * noise
    return load


def _text(values: NDArray[np.float64]) -> str:
    return ",".join(f"{value:.10g}" for value in values)
