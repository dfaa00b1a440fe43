"""Says each round which engine should change its role, keeps the books, and has moves made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.advice.demands import ClusterEngines, DemandBuilder
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.moving.acting import Acting
from disagg_cluster.planner.rebalance.came_load import came_since
from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.limits import RebalanceLimits, RebalanceMode
from disagg_cluster.planner.rebalance.model_rebalance import (
    ModelRebalance,
    RebalanceView,
    rebalance_view,
)
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.pool_pair import split_needs
from disagg_cluster.planner.rebalance.shadow import CameNeeds, ShadowBooks
from disagg_cluster.planner.rebalance.split_needs import RoleSplit
from disagg_cluster.planner.settings.planner_file import PlannerConfig


@dataclass(frozen=True, slots=True)
class RebalanceRound:
    """What the last good round said of each model; `moves` made so far by whose and outcome."""

    mode: RebalanceMode
    limits: RebalanceLimits
    cost: MoveCost
    models: tuple[ModelRebalance, ...] = ()
    moves: Mapping[tuple[str, str, str], int] = field(default_factory=dict)


class Rebalancer:
    """Decides for each model with two pools; keeps what moves were and would have been.

    Args:
        builder: Keeps the capacities that were worked out for plans.
        config: The planner file.
        acting: Makes moves in mode act; without it nothing is moved.
    """

    def __init__(
        self, builder: DemandBuilder, config: PlannerConfig, acting: Acting | None = None
    ) -> None:
        self._builder = builder
        self._config = config
        self._limits = config.rebalance_limits()
        self._books: dict[LoadKey, ShadowBooks] = {}
        self._acting = acting

    def take(
        self, histories: Sequence[LoadHistory], engines: ClusterEngines, now_seconds: float
    ) -> RebalanceRound:
        """Look at all models; nothing is looked at in mode off."""
        mode = self._config.rebalance.mode
        cost = self._config.move_cost(engines.downtime_seconds)
        found = []
        if mode is not RebalanceMode.OFF:
            there = {each.key for each in histories}
            self._books = {key: of for key, of in self._books.items() if key in there}
            for history in histories:
                said = self._look(history, engines, cost, now_seconds)
                if said is not None:
                    found.append(said)
        if self._acting is not None:
            for each in found:
                self._acting.act(each, now_seconds)
        moves = {} if self._acting is None else self._acting.counts
        return RebalanceRound(mode, self._limits, cost, tuple(found), moves)

    def beat(self, now_seconds: float) -> None:
        """Look how far the move has come that is under way."""
        if self._acting is not None:
            self._acting.look(now_seconds)

    def _look(
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
        books = self._kept(history, view)
        whose = (demand.model_name, demand.engine_namespace)
        log = MoveLog() if self._acting is None else self._acting.log_of(whose)
        advised = view.advised(log)
        return replace(advised, books=books)

    def _kept(self, history: LoadHistory, view: RebalanceView) -> ShadowBooks:
        """The books of a model, brought up to now."""
        now_seconds, split = view.now_seconds, view.pools.split
        books = self._books.get(history.key)
        if books is None:
            end_seconds = history.prompt_tokens.end_seconds
            books = ShadowBooks(split, split, now_seconds, end_seconds)
        came = came_since(history, books.settled_seconds)
        if came is not None:
            needs = split_needs(view.pools.options, came, view.demand)
            if not isinstance(needs, Stay):
                books = books.settled(CameNeeds(needs, came.start_seconds))

        def decided(shadow: RoleSplit, log: MoveLog) -> Move | Stay:
            # While we act the other book is that of staying.
            if self._acting is not None:
                return Stay("the shadow of acting is to stay")
            return view.decided(shadow, log, measured=shadow == split)

        self._books[history.key] = books.looked_at(split, decided, view.cost, now_seconds)
        return self._books[history.key]
