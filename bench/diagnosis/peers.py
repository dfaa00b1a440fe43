"""Simple rules that a diagnosis is compared with: the engine that stands out in one figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_cluster.planner.diagnose.verdict.values import EngineKey

_RECENT_SECONDS = 60.0
"""The period that a rule covers, as in a dashboard panel."""

FIRST_TOKEN_FAMILIES = (
    "disagg_engine_time_to_first_token_seconds",
    "disagg_engine_prefill_time_to_first_token_seconds",
)
"""For decode and mixed engines, and for prefill engines."""

Rule = Callable[[SeriesWindow], EngineKey | None]


def highest_ttft(window: SeriesWindow) -> EngineKey | None:
    """The engine with the highest mean time to first token."""
    counts: dict[EngineKey, float] = {}
    seconds: dict[EngineKey, float] = {}
    for name in FIRST_TOKEN_FAMILIES:
        counts |= {_engine(one): _grown(one, window) for one in window.of(f"{name}_count")}
        seconds |= {_engine(one): _grown(one, window) for one in window.of(f"{name}_sum")}
    return _most({key: seconds[key] / count for key, count in counts.items() if count > 0})


def longest_queue(window: SeriesWindow) -> EngineKey | None:
    """The engine with the most requests waiting."""
    waiting = (
        one for one in window.of("disagg_engine_requests") if one.labels.get("state") == "waiting"
    )
    return _most({_engine(one): _mean(one, window) for one in waiting})


def highest_utilization(window: SeriesWindow) -> EngineKey | None:
    """The engine with the busiest GPU."""
    owners = {
        (one.labels["node"], one.labels["gpu"]): _engine(one)
        for one in window.of("disagg_gpu_assignment_info")
    }
    busiest: dict[EngineKey, float] = {}
    for one in window.of("disagg_gpu_utilization_ratio"):
        owner = owners.get((one.labels["node"], one.labels["gpu"]))
        if owner is not None:
            busiest[owner] = max(busiest.get(owner, 0.0), _mean(one, window))
    return _most(busiest)


PEERS: Mapping[str, Rule] = {
    "highest TTFT": highest_ttft,
    "longest queue": longest_queue,
    "highest GPU utilisation": highest_utilization,
}


def _engine(one: ScrapedSeries) -> EngineKey:
    return EngineKey(one.labels["node"], one.labels["engine"])


def _recent(one: ScrapedSeries, window: SeriesWindow) -> list[float]:
    is_recent = one.times_seconds >= window.now_seconds - _RECENT_SECONDS
    return [float(value) for value in one.values[is_recent]]


def _grown(one: ScrapedSeries, window: SeriesWindow) -> float:
    values = _recent(one, window)
    return values[-1] - values[0] if values else 0.0


def _mean(one: ScrapedSeries, window: SeriesWindow) -> float:
    values = _recent(one, window)
    return fmean(values) if values else 0.0


def _most(by_engine: Mapping[EngineKey, float]) -> EngineKey | None:
    return max(by_engine, key=lambda key: by_engine[key], default=None)
