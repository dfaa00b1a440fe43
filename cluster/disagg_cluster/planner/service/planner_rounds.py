"""Planner rounds: read new load, forecast, plan, and score earlier forecasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.cluster_plan import check_one_cluster, cluster_plan
from disagg_cluster.planner.advice.demands import DemandBuilder
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.forecast.forecaster import SharedForecasts
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.moving.acting import Acting
from disagg_cluster.planner.outlook.horizons import HORIZONS_SECONDS
from disagg_cluster.planner.outlook.model_outlook import model_outlook
from disagg_cluster.planner.plan.gpu_plan import GpuPlan
from disagg_cluster.planner.service.past_forecasts import PastForecasts
from disagg_cluster.planner.service.past_waste import PastWaste
from disagg_cluster.planner.service.planner_state import FRESH_INTERVALS, PlannerState
from disagg_cluster.planner.service.rebalancer import Rebalancer, RebalanceRound
from disagg_cluster.planner.service.rolling_history import RollingHistory
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.collectors.health import CollectorHealth, FailureCounts

_TESTS_A_ROUND = 8
_log = logging.getLogger("disagg_node")


class PlannerRounds:
    """Runs rounds on request, and keeps their results for the page.

    Args:
        history: The load of every model, updated by each read.
        engines: Reads the running engines and their step times.
        config: The planner file.
        process: Resource usage of this process, by family.
        acting: Makes moves of engines, in mode act.
        now_ns: The clock of the page.
    """

    def __init__(
        self,
        history: RollingHistory,
        engines: Callable[[float], ClusterEngines],
        config: PlannerConfig,
        process: Callable[[], Mapping[str, float]] = dict,
        acting: Acting | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._history = history
        self._engines = engines
        self._config = config
        self._forecasts = SharedForecasts()
        self._builder = DemandBuilder(config, self._forecasts.forecast)
        self._waste = PastWaste(self._builder, config)
        self._known_engines: ClusterEngines | None = None
        self._process = process
        self._now_ns = now_ns
        self._past = PastForecasts()
        self._rebalancer = Rebalancer(self._builder, config, acting)
        self._reading, self._forecasting, self._planning, self._rebalancing, self._testing = (
            CollectorHealth(f"planner:{name}", _log)
            for name in ("history", "forecast", "plan", "rebalance", "back_test")
        )
        self._failures = FailureCounts()
        self._state = PlannerState(None, 0)

    @property
    def state(self) -> PlannerState:
        """The present state."""
        return self._state

    @property
    def why_not_ready(self) -> str:
        """Why there is nothing to show yet; empty after a successful round."""
        if self._state.made_seconds is not None:
            return ""
        return self._reading.why or self._forecasting.why or "the first round is not over"

    def run_round(self, now_seconds: float) -> None:
        """Run a round; failures are shown by collector and leave earlier results."""
        histories: list[LoadHistory] = []
        with self._reading.round():
            found = self._history.read(now_seconds)
            histories = [each for each in found if _is_there(each)]
            check_one_cluster(each.key.cluster for each in histories)
        if self._reading.ok:
            self._builder.keep_only({each.key for each in histories})
            with self._forecasting.round():
                self._forecast(histories, now_seconds)
            with self._planning.round():
                self._plan(histories, now_seconds)
            with self._rebalancing.round():
                self._rebalance(histories, now_seconds)
            self._forecasts.clear()
            with self._testing.round():
                self._test()
                self._evaluate_past(histories, now_seconds)
        self._refresh_health()

    def refresh(self) -> None:
        """Update process usage and collector health, and poll the move under way.

        A failure to poll is shown as the rebalancing's.
        """
        with self._rebalancing.guard():
            self._rebalancer.poll_move(time.time())
        self._refresh_health()

    def _forecast(self, histories: Sequence[LoadHistory], now_seconds: float) -> None:
        forecasting = self._forecasts.forecast
        outlooks = tuple(
            model_outlook(each, HORIZONS_SECONDS, forecasting=forecasting) for each in histories
        )
        self._past.settle(outlooks, now_seconds)
        self._past.remember(outlooks)
        fresh_ns = int(FRESH_INTERVALS * self._config.every_seconds * 1e9)
        # Replaced at once: a scrape at any time must find forecasts together with their health.
        self._state = self._with_health(
            replace(
                self._state,
                made_seconds=now_seconds,
                fresh_until_ns=self._now_ns() + fresh_ns,
                outlooks=outlooks,
            )
        )

    def _plan(self, histories: Sequence[LoadHistory], now_seconds: float) -> None:
        plan: GpuPlan | None = None
        running: Mapping[CostKey, int] = {}
        self._known_engines = None
        try:
            engines = self._known_engines = self._engines(now_seconds)
            running = engines.running
            plan = cluster_plan(self._builder, self._config, histories, engines, now_seconds)
        finally:
            # After a failure no older plan remains beside newer forecasts. Until then the previous
            # one stays: a scrape without a plan would restart the `for` of alerts.
            self._state = replace(self._state, plan=plan, running=running)

    def _rebalance(self, histories: Sequence[LoadHistory], now_seconds: float) -> None:
        latest: RebalanceRound | None = None
        try:
            if self._known_engines is not None:
                latest = self._rebalancer.run_round(histories, self._known_engines, now_seconds)
        finally:
            # Advice for outdated engines is worse than none.
            self._state = replace(self._state, rebalance=latest)

    def _test(self) -> None:
        """Back-test a few loads that were not tested yet; each takes seconds."""
        for _ in range(_TESTS_A_ROUND):
            if not self._past.back_test_next(self._state.outlooks):
                break

    def _evaluate_past(self, histories: Sequence[LoadHistory], now_seconds: float) -> None:
        engines = self._known_engines
        past = () if engines is None else self._waste.evaluate(histories, engines, now_seconds)
        self._state = replace(self._state, past=past)

    def _refresh_health(self) -> None:
        self._state = self._with_health(self._state)

    def _with_health(self, state: PlannerState) -> PlannerState:
        """Return the state with present error ratios, collector health and process usage."""
        collectors = tuple(
            each.status()
            for each in (
                self._reading,
                self._forecasting,
                self._planning,
                self._rebalancing,
                self._testing,
            )
            if each.tried
        )
        return replace(
            state,
            error_ratios=self._past.error_ratios(),
            collectors=collectors,
            process=self._process(),
            unexpected_failures=self._failures.ingest(collectors),
        )


def _is_there(history: LoadHistory) -> bool:
    """Whether a model had any known load in the last day."""
    steps = int(max(HORIZONS_SECONDS) / history.prompt_tokens.step_seconds)
    series = (history.prompt_tokens, history.output_tokens)
    return any(np.isfinite(each.values[-steps:]).any() for each in series)
