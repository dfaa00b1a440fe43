from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.advice.demands import ClusterEngines, DemandBuilder
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.capacity.learned.request_shape import RequestShape
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.forecast.load_forecast import UndecidedForecast
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import ModelSection, TargetsSection, WorkerSection
from disagg_exporter.model import Role

WORKER = WorkerSection(
    role=Role.DECODE,
    gpu_name="NVIDIA H200",
    gpus=4,
    priced_as="meta-llama/Llama-3.3-70B-Instruct",
    engines=3,
)


def history(namespace: str = "") -> LoadHistory:
    """Too short for a forecast, which nobody asks for here."""
    series = LoadSeries(0.0, 60.0, np.ones(10))
    return LoadHistory(LoadKey("", "llama", namespace), series, series, series)


def test_models_of_one_name_keep_the_targets_of_their_own_namespaces() -> None:
    fast, slow = TargetsSection(itl_seconds=0.02), TargetsSection(itl_seconds=0.1)
    sections = tuple(
        ModelSection(model_name="llama", engine_namespace=name, targets=targets, workers=(WORKER,))
        for name, targets in (("chat", fast), ("batch", slow))
    )
    builder = DemandBuilder(PlannerConfig(models=sections))

    chat, batch = (
        builder.demand(history(name), ClusterEngines()).options[0].targets
        for name in ("chat", "batch")
    )

    assert (chat.itl_seconds, batch.itl_seconds) == (0.02, 0.1)


def test_engines_of_the_file_are_there_only_where_nobody_tells_which_engines_run() -> None:
    """Once Prometheus knows a cluster's engines, a model none of whose engines runs has none."""
    config = PlannerConfig(models=(ModelSection(model_name="llama", workers=(WORKER,)),))
    other = ClusterEngines({CostKey("mistral", "", Role.MIXED, "NVIDIA L4", 1): 2})

    nobody_tells = DemandBuilder(config).demand(history(), ClusterEngines())
    told = DemandBuilder(config).demand(history(), other)

    assert [each.engines for each in nobody_tells.running] == [3]
    assert told.running == ()


def test_a_load_that_nobody_has_seen_for_longer_than_a_start_takes_is_not_planned_for() -> None:
    """It may be another by now; late samples and short outages are no reason to say nothing."""
    values = np.full(200, 5.0)
    config = PlannerConfig(models=(ModelSection(model_name="llama", workers=(WORKER,)),))

    def paths_after(unknown_steps: int) -> LoadPaths | UndecidedForecast:
        known = np.append(values, np.full(unknown_steps, np.nan))
        series = LoadSeries(0.0, 60.0, known)
        told = LoadHistory(LoadKey("", "llama"), series, series, series)
        return DemandBuilder(config).demand(told, ClusterEngines()).paths

    assert isinstance(paths_after(10), LoadPaths)
    silent = paths_after(40)
    assert isinstance(silent, UndecidedForecast)
    assert silent.why == "nothing is known of the last 2400 s"


def test_engines_of_models_that_nobody_plans_for_keep_their_gpus() -> None:
    """One that had no load for a day still runs; one that `--model` leaves out does, too."""
    idle = CostKey("mistral", "", Role.MIXED, "NVIDIA L4", 1)
    own = CostKey("llama", "", Role.DECODE, "NVIDIA H200", 4)
    engines = ClusterEngines({idle: 2, own: 3})

    (left,) = engines.of_others({LoadKey("east", "llama", "")})

    assert (left.gpu_name, left.engines) == ("NVIDIA L4", 2)


def test_what_was_measured_of_requests_is_asked_of_capacities() -> None:
    """Two kinds of requests hold less of a cache than their mean tells."""
    whose = {("llama", "chat"): RequestShape(1e9, 4.0, 2.0, 500.0)}

    def like(namespace: str) -> RequestMix:
        series = LoadSeries(0.0, 60.0, np.ones(100))
        tokens = LoadSeries(0.0, 60.0, np.full(100, 1000.0))
        told = LoadHistory(LoadKey("", "llama", namespace), tokens, tokens, series)
        engines = ClusterEngines(shapes=whose)
        return DemandBuilder(PlannerConfig()).demand(told, engines).like

    measured = like("chat")
    assert (measured.prompt_dispersion, measured.output_dispersion) == pytest.approx((4.0, 2.0))
    # 1,000 tokens of the prompt, and of outputs that differ so much 1,500.
    assert measured.context_factor == pytest.approx(500 / 2500)
    assert like("batch") == RequestMix(1.0, 1.0, 1.0)
