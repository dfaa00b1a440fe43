"""Metric rows of the rebalancer on the planner's page."""

from __future__ import annotations

from disagg_cluster.planner.rebalance.decision import Move
from disagg_cluster.planner.rebalance.model_rebalance import ModelRebalance
from disagg_cluster.planner.service.rebalancer import RebalanceRound
from disagg_exporter.metrics.family import MetricRows


def write_rebalance(rows: MetricRows, latest: RebalanceRound) -> None:
    """Write the present advice, the cost of a move, and the accounting of each model."""
    rows.set("disagg_rebalance_mode_info", 1, latest.mode.value)
    source = "measured" if latest.cost.measured else "assumed"
    rows.set("disagg_rebalance_move_cost_seconds", latest.cost.downtime_seconds, source)
    for (model_name, namespace, outcome), count in latest.moves.items():
        rows.set("disagg_rebalance_moves_total", count, model_name, namespace, outcome)
    for model in latest.models:
        _write_model(rows, model)


def _write_model(rows: MetricRows, model: ModelRebalance) -> None:
    owner = (model.model_name, model.engine_namespace)
    if isinstance(model.advice, Move):
        where = ("", "") if model.worker is None else (model.worker.node, model.worker.worker)
        roles = (model.advice.role.value, model.advice.to_role.value)
        rows.set("disagg_rebalance_advised_info", 1, *where, *owner, *roles)
        gained = model.advice.gain.over_target_seconds
        rows.set("disagg_rebalance_gain_seconds", gained, *owner)
    if (accounting := model.accounting) is not None:
        over = "disagg_rebalance_over_target_seconds_total"
        rows.set(over, accounting.over_target_seconds, *owner, "actual")
        rows.set(over, accounting.shadow_over_target_seconds, *owner, "shadow")
        rows.set("disagg_rebalance_shadow_moves_total", accounting.moves, *owner)
