"""A planner's state after a round on a load with a daily pattern: two pools and a plan."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.service.planner_rounds import PlannerRounds
from disagg_cluster.planner.service.planner_state import PlannerState
from disagg_cluster.planner.service.rolling_history import RollingHistory
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import ModelSection, OfferSection, WorkerSection
from disagg_exporter.model import Role

STEP_SECONDS = 300.0
HOURS = 30
LENGTHS = {"prompt": 700.0, "output": 150.0}


class _Load:
    """Thirty hours of about sixty requests a second: too short for a day ahead."""

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        times = request.first_seconds + request.step_seconds * np.arange(request.steps)
        noise = np.random.default_rng(4).normal(0, 1.5, request.steps)
        requests = 60 + 20 * np.sin(2 * np.pi * times / 86_400) + noise

        def series(values: np.typing.NDArray[np.float64]) -> LoadSeries:
            return LoadSeries(request.first_seconds, request.step_seconds, values)

        prompt, output = (series(requests * each) for each in LENGTHS.values())
        return [LoadHistory(LoadKey("east", "llama"), prompt, output, series(requests))]


def planned_state(now_seconds: float) -> PlannerState:
    """Run the round; its results do not become stale at 0 ns of its clock."""
    workers = tuple(
        WorkerSection(
            role=role,
            gpu_name="NVIDIA H200",
            gpus=4,
            priced_as="meta-llama/Llama-3.3-70B-Instruct",
            engines=2,
        )
        for role in (Role.PREFILL, Role.DECODE)
    )
    config = PlannerConfig(
        gpus=(OfferSection(gpu_name="NVIDIA H200", most_gpus=64, price_per_hour=3.0),),
        models=(ModelSection(model_name="llama", workers=workers),),
    )
    history = RollingHistory(_Load(), HOURS * 3600, STEP_SECONDS)
    rounds = PlannerRounds(history, lambda _now: ClusterEngines(), config, now_ns=lambda: 0)
    rounds.run_round(now_seconds)
    return rounds.state
