"""Separation advice for each model: by which engines, on which GPUs, and what is missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.recent_load import recent_load
from disagg_cluster.planner.advice.separation_advice import SeparationAdvisor, Today
from disagg_cluster.planner.advice.separation_costs import SeparationCosts
from disagg_cluster.planner.advice.separation_text import separation_text, verdict_words
from disagg_cluster.planner.advice.separation_values import separation_value
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.capacity.learned.learned_costs import LearnedSteps, learned_costs
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.separation.verdict import (
    Gain,
    InterferenceSeconds,
    SeparationVerdict,
    UndecidedSeparation,
)
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import ModelSection, TargetsSection, WorkerSection
from disagg_exporter.model import Role

H200 = "NVIDIA H200"
WORKER = WorkerSection(
    role=Role.DECODE, gpu_name=H200, gpus=4, priced_as="meta-llama/Llama-3.3-70B-Instruct"
)
LEARNED = learned_costs(
    [
        LearnedSteps(
            {256.0: 0.02, 2048.0: 0.1, 8192.0: 0.4},
            {1.0: 0.012, 64.0: 0.02, 256.0: 0.04},
            {},
            0.008,
            2000.0,
        )
    ],
    EngineShape("GPU", 1, 400_000.0, None),
)
SECTION = ModelSection(model_name="llama", kv_bytes_per_token=131_072.0)
CONFIG = PlannerConfig(
    targets=TargetsSection(ttft_seconds=3.0, itl_seconds=0.1),
    kv_link_bytes_per_second=5e10,
    models=(SECTION,),
)


def kind(role: Role = Role.MIXED, gpu_name: str = "GPU", gpus: int = 1) -> CostKey:
    return CostKey("llama", "", role, gpu_name, gpus)


def history(requests: float | None = 4.0) -> LoadHistory:
    def series(value: float) -> LoadSeries:
        return LoadSeries(0.0, 60.0, np.full(100, value))

    arriving = None if requests is None else series(requests)
    return LoadHistory(LoadKey("", "llama"), series(4000.0), series(800.0), arriving)


def test_running_mixed_engines_give_step_times_for_each_role() -> None:
    engines = ClusterEngines({kind(): 8}, {kind(): LEARNED})
    measured = {kind(): InterferenceSeconds(12.0, 0.0, 100.0)}

    (answer,) = SeparationAdvisor(CONFIG, engines, measured).advise(history()).answers

    verdict = answer.verdict
    assert isinstance(verdict, SeparationVerdict)
    assert (answer.today, answer.gpu_name, answer.gpus) == (Today.MIXED, "GPU", 8)
    assert verdict.mixed.engines == 8
    assert verdict.split.prefill_engines + verdict.split.decode_engines == 8
    assert verdict.split.transfer_seconds == pytest.approx(1000 * 131_072 / 5e10)
    assert verdict.interference_gain == pytest.approx(100 / 88)


def test_gpus_of_two_names_get_separate_answers_with_separate_interference() -> None:
    other = kind(gpu_name="GPU 2")
    engines = ClusterEngines({kind(): 4, other: 2}, {kind(): LEARNED, other: LEARNED})
    measured = {other: InterferenceSeconds(50.0, 0.0, 100.0)}

    model = SeparationAdvisor(CONFIG, engines, measured).advise(history())

    assert [(each.gpu_name, each.gpus) for each in model.answers] == [("GPU", 4), ("GPU 2", 2)]
    verdicts = [each.verdict for each in model.answers]
    assert [isinstance(each, SeparationVerdict) and each.interference_gain for each in verdicts] \
        == [None, 2.0]  # fmt: skip
    assert model.holds(1e9) is None


def test_all_missing_inputs_are_reported_at_once() -> None:
    config = replace_config(kv_link_bytes_per_second=None, models=())
    costs = {kind(): UndecidedCapacity("none of 8 engines reports its step times")}
    engines = ClusterEngines({kind(): 8}, costs)

    (answer,) = SeparationAdvisor(config, engines, {}).advise(history(None)).answers

    assert answer.verdict == UndecidedSeparation(
        (
            "30 requests of the last day or more",
            "what steps of mixed engines cost",
            "what steps of prefill engines cost",
            "what steps of decode engines cost",
            "the bandwidth of the links that would carry KV",
            "mixed engines on 1 x GPU: none of 8 engines reports its step times",
        )
    )


def test_only_planner_file_keys_that_provide_missing_inputs_are_named() -> None:
    engines = ClusterEngines({kind(): 8})
    nothing = replace_config(kv_link_bytes_per_second=None, models=())
    unlinked = replace_config(kv_link_bytes_per_second=None)

    def hint(config: PlannerConfig, costs: ClusterEngines, load: LoadHistory) -> str:
        text = separation_text([SeparationAdvisor(config, costs, {}).advise(load)])
        return text.partition("A planner file can provide what is missing: ")[2]

    assert hint(nothing, engines, history()) == "`workers`, `kv_link_bytes_per_second`."
    known = ClusterEngines({kind(): 8}, {kind(): LEARNED})
    assert hint(unlinked, known, history()) == "`kv_link_bytes_per_second`."
    assert hint(CONFIG, known, history(None)) == ""


def test_kv_bytes_are_missing_unless_file_or_price_table_have_them() -> None:
    engines = ClusterEngines({kind(): 8}, {kind(): LEARNED})

    def verdict(**of_model: object) -> SeparationVerdict | UndecidedSeparation:
        section = ModelSection.model_validate({"model_name": "llama", **of_model})
        config = replace_config(models=(section,))
        (answer,) = SeparationAdvisor(config, engines, {}).advise(history()).answers
        return answer.verdict

    assert verdict() == UndecidedSeparation(("the KV bytes a token takes on 1 x GPU",))
    by_table = verdict(workers=[WORKER])
    assert isinstance(by_table, SeparationVerdict)
    assert by_table.split.transfer_seconds == pytest.approx(1000 * 327_680 / 5e10)


@pytest.mark.parametrize(
    ("running", "missing"),
    [
        ({kind(Role.PREFILL): 2}, "decode engines: only prefill engines run"),
        ({kind(Role.DECODE): 2}, "prefill engines: only decode engines run"),
        (
            {kind(Role.PREFILL): 2, kind(Role.DECODE, "GPU 2"): 2},
            "one kind of prefill and one kind of decode engine, on GPUs of one name",
        ),
        (
            {kind(Role.PREFILL): 2, kind(Role.DECODE): 2, kind(Role.DECODE, gpus=2): 1},
            "one kind of prefill and one kind of decode engine, on GPUs of one name",
        ),
    ],
)
def test_pools_that_cannot_be_compared_with_mixed_engines_are_undecided(
    running: dict[CostKey, int], missing: str
) -> None:
    (answer,) = SeparationAdvisor(CONFIG, ClusterEngines(running), {}).advise(history()).answers

    assert answer.today is Today.SEPARATE
    assert answer.verdict == UndecidedSeparation((missing,))


def test_pools_without_known_mixed_engines_are_undecided() -> None:
    engines = ClusterEngines({kind(Role.PREFILL): 2, kind(Role.DECODE): 2})

    (answer,) = SeparationAdvisor(CONFIG, engines, {}).advise(history()).answers

    assert isinstance(answer.verdict, UndecidedSeparation)
    assert "what steps of mixed engines cost" in answer.verdict.missing


def test_workers_represent_every_role_and_running_engines_their_size() -> None:
    key = kind(gpu_name=H200, gpus=2)
    small = WORKER.model_copy(update={"gpus": 2})
    section = ModelSection(model_name="llama", workers=(WORKER, small))
    costs = SeparationCosts.of(
        LoadKey("", "llama"), section, ClusterEngines({key: 1}, {key: LEARNED})
    )

    engines = costs.engines(H200)

    for role in (engines.mixed, engines.prefill, engines.decode):
        errors = [each.relative_error for each in role]
        assert len(errors) == 2
        assert errors[0] == getattr(LEARNED, "relative_error", None) != errors[1]
    assert costs.gpu_names == [H200]


def test_busy_hours_weigh_more_in_mean_lengths_and_older_days_not_at_all() -> None:
    day = 24
    requests = np.array([99.0] * day + [1.0] * 12 + [3.0] * 11 + [np.nan])
    lengths = np.array([9.0] * day + [100.0] * 12 + [200.0] * 12)

    def series(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> LoadSeries:
        return LoadSeries(0.0, 3600.0, values)

    load_history = LoadHistory(
        LoadKey(), series(np.nan_to_num(requests) * lengths), series(np.ones(48)), series(requests)
    )

    load = recent_load(load_history)

    assert load is not None
    arrived = 12 + 33
    assert load.mix.prompt_tokens == pytest.approx((12 * 100 + 33 * 200) / arrived)
    assert load.mix.requests_per_second == pytest.approx(arrived / 23)
    assert load.peak_requests_per_second == 3.0
    idle = replace(load_history, requests=series(np.zeros(48)))
    assert recent_load(idle) is None
    seldom = replace(load_history, requests=series(np.full(48, 1 / 3600)))
    assert recent_load(seldom) is None
    assert recent_load(replace(load_history, requests=series(np.full(48, 2 / 3600)))) is not None


def test_an_infinite_gain_is_words_in_text_and_null_in_json() -> None:
    engines = ClusterEngines({kind(): 8}, {kind(): LEARNED})
    model = SeparationAdvisor(CONFIG, engines, {}).advise(history())
    (answer,) = model.answers
    assert isinstance(answer.verdict, SeparationVerdict)
    endless = replace(answer.verdict, gain=Gain(math.inf, 2.0, math.inf))

    made = replace(model, answers=(replace(answer, verdict=endless),))

    whole = json.dumps(separation_value([made], 0.0), allow_nan=False)
    (answer,) = json.loads(whole)["models"][0]["answers"]
    assert answer["gain"] == {"ratio": None, "low": 2.0, "high": None}
    assert "a load at these targets, and as the other way none at all" in separation_text([made])


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.8, 1.2, "(90 %: 0.8 to 1.2)"),
        (0.0, 1.2, "(90 %: at most 1.2)"),
        (0.8, math.inf, "(90 %: 0.8 or more)"),
        (0.0, math.inf, "(more or less, as far as was seen)"),
    ],
)
def test_a_gain_whose_end_was_never_seen_has_none(low: float, high: float, words: str) -> None:
    engines = ClusterEngines({kind(): 8}, {kind(): LEARNED})
    model = SeparationAdvisor(CONFIG, engines, {}).advise(history())
    (answer,) = model.answers
    assert isinstance(answer.verdict, SeparationVerdict)

    made = replace(answer, verdict=replace(answer.verdict, gain=Gain(1.0, low, high)))

    assert words in verdict_words(made)


def replace_config(**changed: object) -> PlannerConfig:
    return CONFIG.model_copy(update=changed)
