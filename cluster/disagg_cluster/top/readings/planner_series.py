"""Reads a planner's series: GPUs by role, advised moves and bottlenecks."""

from __future__ import annotations

from collections import defaultdict

from disagg_cluster.top.readings.series import Labels, Series
from disagg_cluster.top.readings.values import AdvisedMove, BottleneckReading, PlanReading, PoolKey

_ANSWERS = ("cluster", "node", "engine", "model_name", "engine_namespace", "role", "cause")
_MOVES = ("model_name", "node", "worker", "role", "to_role", "cluster", "engine_namespace")
# The same values as on the Cluster dashboard: the need in one hour at the 90 % quantile.
_HORIZON, _QUANTILE = "1h", "0.9"


def plans(series: Series) -> tuple[PlanReading, ...]:
    """GPUs of each role: current, needed and recommended in one hour, or at the nearest horizon.

    The need is that at the quantile shown on the dashboards.
    """
    rows: dict[tuple[PoolKey, str], list[tuple[Labels, float]]] = defaultdict(list)
    for sample in series.get("disagg_plan_gpus", ()):
        labels = sample.labels
        key = PoolKey(
            labels.get("cluster", ""),
            labels.get("model_name", ""),
            labels.get("engine_namespace", ""),
            labels.get("role", ""),
        )
        rows[key, labels.get("gpu_name", "")].append((labels, sample.value))
    return tuple(_plan(*key, samples) for key, samples in sorted(rows.items(), key=str))


def _plan(key: PoolKey, gpu_name: str, samples: list[tuple[Labels, float]]) -> PlanReading:
    horizons = {labels.get("horizon", "") for labels, _ in samples} - {""}
    horizon = _HORIZON if _HORIZON in horizons else min(horizons, default="")
    known: dict[str, float] = {}
    for labels, value in samples:
        if labels.get("horizon", "") in ("", horizon) and labels.get("quantile", "") in (
            "",
            _QUANTILE,
        ):
            known[labels.get("kind", "")] = value
    return PlanReading(
        key, gpu_name, known.get("current"), known.get("needed"), known.get("recommended"), horizon
    )


def advised(series: Series) -> tuple[AdvisedMove, ...]:
    """The role changes that would pay off now; while a planner is replaced two say them."""
    moves = dict.fromkeys(
        tuple(sample.labels.get(name, "") for name in _MOVES)
        for sample in series.get("disagg_rebalance_advised_info", ())
    )
    return tuple(AdvisedMove(*move) for move in moves)


def bottlenecks(series: Series) -> tuple[BottleneckReading, ...]:
    """Verdicts of the diagnosis, the costliest first; while a planner is replaced two say them."""
    costs = {
        _whose(sample.labels): sample.value
        for sample in series.get("disagg_bottleneck_ttft_cost_seconds", ())
    }
    actions = {
        _whose(sample.labels): sample.labels.get("action", "")
        for sample in series.get("disagg_bottleneck_action_info", ())
    }
    sureness: dict[tuple[str, ...], float] = {}
    for sample in series.get("disagg_bottleneck", ()):
        whose = _whose(sample.labels)
        sureness[whose] = max(sample.value, sureness.get(whose, 0.0))
    found = []
    for whose, sure in sureness.items():
        # The verdict's own labels: `node` and `engine` are not those of the scrape.
        cluster, node, engine, model_name, namespace, role, cause = whose
        found.append(
            BottleneckReading(
                model_name,
                node,
                engine,
                role,
                cause,
                actions.get(whose, ""),
                sure,
                costs.get(whose),
                cluster,
                namespace,
            )
        )
    return tuple(sorted(found, key=lambda each: -(each.ttft_cost_seconds or 0.0)))


def _whose(labels: Labels) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in _ANSWERS)
