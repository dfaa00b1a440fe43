"""What engines wasted in the past: the window, the engines, and when it is not known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import DemandBuilder
from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit, past_split
from disagg_cluster.planner.advice.past_split_text import past_split_value, past_split_words
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import Floats, LoadSeries
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import (
    ModelSection,
    OfferSection,
    TargetsSection,
    WorkerSection,
)
from disagg_exporter.model import Role

H200 = "NVIDIA H200"
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
START = 1_700_000_000.0
DAY_STEPS = 288


def worker(role: Role, engines: int) -> WorkerSection:
    return WorkerSection(role=role, gpu_name=H200, gpus=4, priced_as=LLAMA, engines=engines)


def config(*workers: WorkerSection, price: float | None = 3.0) -> PlannerConfig:
    return PlannerConfig(
        targets=TargetsSection(ttft_seconds=2.0, itl_seconds=0.05),
        gpus=(OfferSection(gpu_name=H200, price_per_hour=price, idle_watts=100.0),),
        models=(ModelSection(model_name="llama", workers=workers),),
    )


PAIR = config(worker(Role.PREFILL, 2), worker(Role.DECODE, 2))


def series(values: Floats) -> LoadSeries:
    return LoadSeries(START, 300.0, values)


def history(rates: Floats, busy_gpus: float | None = None) -> LoadHistory:
    busy = None if busy_gpus is None else series(np.full(len(rates), busy_gpus))
    return LoadHistory(
        LoadKey("", "llama"), series(rates * 500), series(rates * 100), series(rates), busy
    )


def steady(steps: int, rate: float = 10.0) -> Floats:
    return np.full(steps, rate)


def judged(
    load: LoadHistory, planner_config: PlannerConfig = PAIR, engines: ClusterEngines | None = None
) -> PastSplit | UndecidedPastSplit:
    return past_split(
        DemandBuilder(planner_config), planner_config, load, engines or ClusterEngines()
    )


def found(
    load: LoadHistory, planner_config: PlannerConfig = PAIR, engines: ClusterEngines | None = None
) -> PastSplit:
    past = judged(load, planner_config, engines)
    assert isinstance(past, PastSplit)
    return past


def running(prefill: int, decode: int) -> ClusterEngines:
    counts = ((Role.PREFILL, prefill), (Role.DECODE, decode))
    return ClusterEngines({CostKey("llama", "", role, H200, 4): n for role, n in counts})


def why(past: PastSplit | UndecidedPastSplit) -> str:
    assert isinstance(past, UndecidedPastSplit)
    assert list(past_split_words(past)) == [f"in hindsight undecided: {past.reason}"]
    assert past_split_value(past) == {"undecided": past.reason}
    return past.reason


def test_lines_report_idle_gpus_and_the_best_fixed_split() -> None:
    lines = list(past_split_words(found(history(steady(DAY_STEPS // 2)))))

    assert lines == [
        "last 12 hours, had the engines of the planner file run all along: 96.0 of 192.0 GPU-hours "
        "idle beyond need (50 %, 9.6 kWh, 288.00 at 3.00/h), 0 minutes over target",
        "best fixed split: 1 prefill engine + 1 decode engine, 96.0 GPU-hours less, "
        "0 minutes more over target",
        "engines that follow the load: 96.0 GPU-hours less, 0 minutes more over target",
    ]


def test_the_right_engines_are_the_best_split() -> None:
    right = config(worker(Role.PREFILL, 1), worker(Role.DECODE, 1), price=None)
    first, second, _ = past_split_words(found(history(steady(DAY_STEPS)), right))

    assert "0.0 of 192.0 GPU-hours idle beyond need (0 %, 0.0 kWh), 0 minutes" in first
    assert second == "best fixed split: the same, 1 prefill engine + 1 decode engine"


def test_there_is_no_best_split_if_none_meets_the_targets() -> None:
    few = config(worker(Role.PREFILL, 1), worker(Role.DECODE, 1))
    first, second, _ = past_split_words(found(history(steady(DAY_STEPS, rate=200.0)), few))

    assert first.endswith("1,440 minutes over target")
    assert second == "best fixed split: none on so many GPUs keeps the targets at any time"


def test_json_has_every_figure_with_its_unit() -> None:
    value = past_split_value(found(history(steady(DAY_STEPS // 2))))

    assert (value["engines_from"], value["window_seconds"]) == ("planner_file", 43_200.0)
    present = value["present"]
    assert present == {
        "engines": {"prefill": {"least": 2, "most": 2}, "decode": {"least": 2, "most": 2}},
        "gpu_hours": pytest.approx(192.0),
        "idle_gpu_hours": pytest.approx(96.0),
        "idle_gpu_hours_by_role": {"prefill": pytest.approx(48.0), "decode": pytest.approx(48.0)},
        "short_gpu_hours": 0.0,
        "minutes_over_target": 0.0,
        "idle_kilowatt_hours": pytest.approx(9.6),
        "idle_money": pytest.approx(288.0),
    }


def test_only_the_last_seven_days_count() -> None:
    """In the first week, two prefill engines would have been too few."""
    rates = np.concatenate([steady(7 * DAY_STEPS, 200.0), steady(7 * DAY_STEPS)])
    past = found(history(rates))

    assert past.window_seconds == 7 * 86_400
    assert past.hindsight.present.minutes_over_target == 0.0


def test_unknown_parts_of_the_window_are_reported_and_do_not_count() -> None:
    rates = steady(2 * DAY_STEPS)
    rates[DAY_STEPS // 2 : DAY_STEPS] = np.nan
    past = found(history(rates))

    assert next(iter(past_split_words(past))).startswith("last 2 days (36 hours of them known)")
    assert past.hindsight.present.gpu_hours == pytest.approx(36 * 16)


def test_the_running_engines_are_judged() -> None:
    past = found(history(steady(DAY_STEPS), busy_gpus=8.0), engines=running(3, 1))

    assert past.running
    assert past.hindsight.present.engines == ((Role.PREFILL, 3, 3), (Role.DECODE, 1, 1))
    assert "had the engines that run now run all along" in next(iter(past_split_words(past)))


def test_a_window_begins_after_the_last_step_with_more_busy_gpus_than_now() -> None:
    load = history(steady(DAY_STEPS), busy_gpus=8.0)
    assert load.prefill_gpus is not None
    busy = load.prefill_gpus.values.copy()
    busy[DAY_STEPS // 2] = 20.0
    load = replace(load, prefill_gpus=series(busy))

    past = found(load, engines=running(2, 2))
    assert past.window_seconds == (DAY_STEPS // 2 - 1) * 300

    busy[-3] = 20.0
    reason = why(judged(load, engines=running(2, 2)))
    assert reason == "until recently more GPUs were busy than the 16 that run now"


def test_a_split_that_cannot_be_judged_is_undecided_with_the_reason() -> None:
    load = history(steady(DAY_STEPS))
    several = (worker(Role.PREFILL, 1), worker(Role.DECODE, 1), worker(Role.MIXED, 1))
    one_size = worker(Role.DECODE, 1)
    other = one_size.model_copy(update={"gpus": 8})

    assert why(judged(load, config())) == "which engines there were is not known"
    assert why(judged(load, config(*several))).endswith("are no split that can be judged")
    assert why(judged(load, config(one_size))).startswith("decode engines are")
    assert "several kinds" in why(judged(load, config(several[0], one_size, other)))
    assert why(judged(replace(load, requests=None))) == "how many requests arrive is not known"
    assert why(judged(history(steady(5)))) == "less than an hour of its load is known"
    assert why(judged(history(steady(DAY_STEPS, 0.0)))) == "no request arrived"
    gone = ClusterEngines({CostKey("other", "", Role.MIXED, H200, 4): 1})
    assert why(judged(load, engines=gone)) == "which engines there were is not known"
    unpriced = ClusterEngines({CostKey("llama", "", Role.MIXED, "NVIDIA L4", 1): 1})
    assert why(judged(load, engines=unpriced)) == "the step times of mixed engines are not known"
