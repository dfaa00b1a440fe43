from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import DemandBuilder, LoadScale
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.capacity.learned.request_shape import RequestShape
from disagg_cluster.planner.capacity.request_mix import MOST_TOKENS, RequestMix
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
    """Too short for a forecast, which these tests do not need."""
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


def test_engines_of_the_file_count_only_if_no_running_engine_is_known() -> None:
    """Once Prometheus knows a cluster's engines, a model none of whose engines runs has none."""
    config = PlannerConfig(models=(ModelSection(model_name="llama", workers=(WORKER,)),))
    other = ClusterEngines({CostKey("mistral", "", Role.MIXED, "NVIDIA L4", 1): 2})

    unknown = DemandBuilder(config).demand(history(), ClusterEngines())
    known = DemandBuilder(config).demand(history(), other)

    assert [each.engines for each in unknown.running] == [3]
    assert known.running == ()


def test_a_load_unknown_for_longer_than_a_start_takes_has_no_plan() -> None:
    """It may have changed; late samples and short outages do not prevent a plan."""
    values = np.full(200, 5.0)
    config = PlannerConfig(models=(ModelSection(model_name="llama", workers=(WORKER,)),))

    def paths_after(unknown_steps: int) -> LoadPaths | UndecidedForecast:
        known = np.append(values, np.full(unknown_steps, np.nan))
        series = LoadSeries(0.0, 60.0, known)
        load = LoadHistory(LoadKey("", "llama"), series, series, series)
        return DemandBuilder(config).demand(load, ClusterEngines()).paths

    assert isinstance(paths_after(10), LoadPaths)
    silent = paths_after(40)
    assert isinstance(silent, UndecidedForecast)
    assert silent.why == "nothing is known of the last 40m 0s"


def test_the_error_of_forecasts_is_computed_hourly_also_after_the_clock_was_set_back() -> None:
    def load(end_seconds: float) -> LoadHistory:
        series = LoadSeries(end_seconds - 60.0 * 400, 60.0, np.full(400, 5.0))
        return LoadHistory(LoadKey("", "llama"), series, series, series)

    builder = DemandBuilder(PlannerConfig())
    errors = [
        builder.demand(load(end), ClusterEngines()).error
        for end in (1e6, 1e6 + 3540, 1e6 + 3600, 9e5, 9e5 + 60)
    ]

    assert errors[0] is not None
    assert [errors[0] is each for each in errors[1:3]] == [True, False]
    assert [errors[2] is errors[3], errors[3] is errors[4]] == [False, True]


def test_engines_of_models_without_a_plan_keep_their_gpus() -> None:
    """A model without load for a day still runs, and so does one that `--model` leaves out."""
    idle = CostKey("mistral", "", Role.MIXED, "NVIDIA L4", 1)
    own = CostKey("llama", "", Role.DECODE, "NVIDIA H200", 4)
    engines = ClusterEngines({idle: 2, own: 3})

    (left,) = engines.of_other_models({LoadKey("east", "llama", "")})

    assert (left.gpu_name, left.engines) == ("NVIDIA L4", 2)


def test_measured_request_shapes_reach_the_demand() -> None:
    """Two kinds of requests hold less of a cache than their mean suggests."""
    shapes = {("llama", "chat"): RequestShape(1e9, 4.0, 2.0, 500.0)}

    def base_mix(namespace: str) -> RequestMix:
        series = LoadSeries(0.0, 60.0, np.ones(100))
        tokens = LoadSeries(0.0, 60.0, np.full(100, 1000.0))
        load = LoadHistory(LoadKey("", "llama", namespace), tokens, tokens, series)
        engines = ClusterEngines(shapes=shapes)
        return DemandBuilder(PlannerConfig()).demand(load, engines).base_mix

    measured = base_mix("chat")
    assert (measured.prompt_dispersion, measured.output_dispersion) == pytest.approx((4.0, 2.0))
    # 1,000 tokens of the prompt, and 1,500 of outputs with this dispersion.
    assert measured.context_factor == pytest.approx(500 / 2500)
    assert base_mix("batch") == RequestMix(1.0, 1.0, 1.0)


def test_the_measured_context_counts_where_engines_report_no_lengths() -> None:
    """SGLang has histograms of them only if told so; the cache in use is on every page."""
    requests, prompts = (LoadSeries(0.0, 60.0, np.full(100, each)) for each in (10.0, 5000.0))
    load = LoadHistory(LoadKey("", "llama"), prompts, prompts, requests)
    engines = ClusterEngines(shapes={("llama", ""): RequestShape(context_tokens=250.0)})

    mix = DemandBuilder(PlannerConfig()).demand(load, engines).base_mix

    # 500 tokens of the prompt, and 500 of outputs with the assumed dispersion.
    assert mix.context_factor == pytest.approx(250 / 1000, rel=0.02)
    assert mix.prompt_dispersion == RequestMix(1.0, 1.0, 1.0).prompt_dispersion


def test_the_measured_hit_rate_changes_no_load_though_some_prompts_are_not_known() -> None:
    """Frontends count requests also while nodes could not be scraped."""
    requests, cached = (LoadSeries(0.0, 60.0, np.full(200, each)) for each in (1.0, 100.0))
    prompts = LoadSeries(0.0, 60.0, np.full(200, 100.0))
    prompts.values[150:180] = np.nan
    load = LoadHistory(LoadKey("", "llama"), prompts, prompts, requests, cached_tokens=cached)
    builder = DemandBuilder(PlannerConfig())

    present = builder.demand(load, ClusterEngines())
    assumed = builder.demand(load, ClusterEngines(), LoadScale(hit_rate=0.5))

    assert isinstance(present.paths, LoadPaths)
    assert isinstance(assumed.paths, LoadPaths)
    assert assumed.base_mix.cached_tokens == pytest.approx(present.base_mix.cached_tokens)
    np.testing.assert_allclose(assumed.paths.prompt_tokens, present.paths.prompt_tokens)


def test_cached_tokens_of_hardly_any_requests_or_of_endless_prompts_break_no_plan() -> None:
    """A router that sees one request an hour, for instance, beside engines that serve many."""

    def load(requests: float) -> LoadHistory:
        rates = (requests, 100.0, 100.0, 20_000.0)
        arrived, prompts, outputs, cached = (
            LoadSeries(0.0, 60.0, np.full(100, rate)) for rate in rates
        )
        return LoadHistory(LoadKey("", "llama"), prompts, outputs, arrived, cached_tokens=cached)

    builder, engines = DemandBuilder(PlannerConfig()), ClusterEngines()
    longer, cached_longer = LoadScale(prompt_length=1000.0), LoadScale(1.0, 1000.0, 1.0, 0.99)

    rare = builder.demand(load(1 / 3600), engines)
    scaled = [builder.demand(load(1.0), engines, each) for each in (longer, cached_longer)]

    assert rare.base_mix.cached_tokens == MOST_TOKENS
    assert [each.base_mix.cached_tokens for each in scaled] == [MOST_TOKENS, MOST_TOKENS]
