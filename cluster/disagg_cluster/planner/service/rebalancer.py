"""Advises each round which engine should change its role, accounts for it, and starts moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import DemandBuilder
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.moving.acting import Acting
from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.limits import RebalanceLimits, RebalanceMode
from disagg_cluster.planner.rebalance.model_rebalance import (
    ModelRebalance,
    RebalanceView,
    rebalance_view,
)
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.observed_load import load_since
from disagg_cluster.planner.rebalance.pool_pair import split_needs
from disagg_cluster.planner.rebalance.shadow import ObservedNeeds, ShadowAccounting
from disagg_cluster.planner.rebalance.split_needs import RoleSplit
from disagg_cluster.planner.settings.planner_file import PlannerConfig


@dataclass(frozen=True, slots=True)
class RebalanceRound:
    """Advice of one round for each model; `moves` made so far, by model, namespace and outcome."""

    mode: RebalanceMode
    limits: RebalanceLimits
    cost: MoveCost
    models: tuple[ModelRebalance, ...] = ()
    moves: Mapping[tuple[str, str, str], int] = field(default_factory=dict)


class Rebalancer:
    """Decides for each model with two pools; accounts for actual and advised moves.

    Args:
        builder: Caches the capacities computed for plans.
        config: The planner file.
        acting: Makes moves in mode act; without it nothing is moved.
    """

    def __init__(
        self, builder: DemandBuilder, config: PlannerConfig, acting: Acting | None = None
    ) -> None:
        self._builder = builder
        self._config = config
        self._limits = config.rebalance_limits()
        self._accounting: dict[LoadKey, ShadowAccounting] = {}
        self._acting = acting

    def run_round(
        self, histories: Sequence[LoadHistory], engines: ClusterEngines, now_seconds: float
    ) -> RebalanceRound:
        """Advise on all models; none in mode off."""
        mode = self._config.rebalance.mode
        cost = self._config.move_cost(engines.downtime_seconds)
        found = []
        if self._acting is not None:
            self._acting.learn(engines.workers, now_seconds)
        if mode is not RebalanceMode.OFF:
            there = {each.key for each in histories}
            self._accounting = {key: of for key, of in self._accounting.items() if key in there}
            for history in histories:
                advice = self._advise(history, engines, cost, now_seconds)
                if advice is not None:
                    found.append(advice)
        if self._acting is not None:
            for each in found:
                self._acting.act(each, now_seconds)
        moves = {} if self._acting is None else self._acting.counts
        return RebalanceRound(mode, self._limits, cost, tuple(found), moves)

    def poll_move(self, now_seconds: float) -> None:
        """Ask for the progress of the move under way."""
        if self._acting is not None:
            self._acting.poll(now_seconds)

    def _advise(
        self, history: LoadHistory, engines: ClusterEngines, cost: MoveCost, now_seconds: float
    ) -> ModelRebalance | None:
        demand = self._builder.demand(history, engines)
        view = rebalance_view(
            demand,
            engines.workers,
            cost,
            self._limits,
            self._config.short_weight,
            now_seconds,
        )
        if not isinstance(view, RebalanceView):
            return view
        accounting = self._updated_accounting(history, view)
        owner = (demand.model_name, demand.engine_namespace)
        if self._acting is None:
            advice = view.advise(MoveLog())
        else:
            log, left_out = self._acting.log_of(owner), self._acting.left_out(now_seconds)
            advice = view.advise(log, left_out)
        return replace(advice, accounting=accounting)

    def _updated_accounting(self, history: LoadHistory, view: RebalanceView) -> ShadowAccounting:
        """Bring the accounting of a model up to now, and keep it."""
        now_seconds, split = view.now_seconds, view.pools.split
        end_seconds = history.prompt_tokens.end_seconds
        accounting = self._accounting.get(history.key)
        if accounting is None:
            accounting = ShadowAccounting(split, split, now_seconds, end_seconds)
        accounting = accounting.until(now_seconds, end_seconds)
        load = load_since(history, accounting.accounted_seconds)
        if load is not None:
            needs = split_needs(view.pools.options, load, view.demand)
            if not isinstance(needs, Stay):
                accounting = accounting.with_load(ObservedNeeds(needs, load.start_seconds))

        def decide(shadow: RoleSplit, log: MoveLog) -> Move | Stay:
            # In mode act the shadow never moves.
            if self._acting is not None:
                return Stay("the shadow of acting is to stay")
            return view.decide(shadow, log, measured=shadow == split)

        self._accounting[history.key] = accounting.updated(split, decide, view.cost, now_seconds)
        return self._accounting[history.key]
