"""The rows of the rebalancer on the planner's page."""

from __future__ import annotations

from disagg_cluster.planner.rebalance.decision import Move
from disagg_cluster.planner.rebalance.model_rebalance import ModelRebalance
from disagg_cluster.planner.service.rebalancer import RebalanceRound
from disagg_exporter.metrics.family import MetricRows


def write_rebalance(rows: MetricRows, told: RebalanceRound) -> None:
    """Write what is advised now, what it is taken to cost, and the books of each model."""
    rows.set("disagg_rebalance_mode_info", 1, told.mode.value)
    source = "measured" if told.cost.measured else "assumed"
    rows.set("disagg_rebalance_move_cost_seconds", told.cost.downtime_seconds, source)
    for (model_name, namespace, outcome), count in told.moves.items():
        rows.set("disagg_rebalance_moves_total", count, model_name, namespace, outcome)
    for model in told.models:
        _write_model(rows, model)


def _write_model(rows: MetricRows, model: ModelRebalance) -> None:
    whose = (model.model_name, model.engine_namespace)
    if isinstance(model.said, Move):
        where = ("", "") if model.worker is None else (model.worker.node, model.worker.worker)
        roles = (model.said.role.value, model.said.to_role.value)
        rows.set("disagg_rebalance_advised_info", 1, *where, *whose, *roles)
        gained = model.said.gain.over_target_seconds
        rows.set("disagg_rebalance_gain_seconds", gained, *whose)
    if (books := model.books) is not None:
        over = "disagg_rebalance_over_target_seconds_total"
        rows.set(over, books.over_target_seconds, *whose, "actual")
        rows.set(over, books.shadow_over_target_seconds, *whose, "shadow")
        rows.set("disagg_rebalance_shadow_moves_total", books.moves, *whose)
