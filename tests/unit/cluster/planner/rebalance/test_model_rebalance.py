"""Which engines can replace each other, and which one is selected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.plan_demands import NOW, PAIR, Fleet, demand, options, paths

from disagg_cluster.planner.capacity.engine_costs import StretchedCosts, UnseenStepError
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.forecast.load_forecast import UndecidedForecast
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.plan.model_demand import ModelDemand, RunningEngines
from disagg_cluster.planner.plan.worker_option import WorkerOption
from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.model_rebalance import (
    ModelRebalance,
    RebalanceView,
    rebalance_view,
)
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.observed_load import load_since
from disagg_cluster.planner.rebalance.pool_pair import step_floor
from disagg_cluster.planner.rebalance.pool_worker import (
    PoolWorker,
    cheapest,
    pool_capacity_used,
)
from disagg_exporter.model import Role

COST = MoveCost(360.0)


def worker(
    name: str, role: Role = Role.PREFILL, model: str = "model", **more: object
) -> PoolWorker:
    kind = CostKey(model, "default", role, "A", 1)
    return replace(PoolWorker("node-a", name, kind, supervised=True, requests=3.0), **more)  # type: ignore[arg-type] # fields by name


def updated(of: ModelDemand, *workers: PoolWorker) -> RebalanceView | ModelRebalance | None:
    return rebalance_view(of, workers, COST, RebalanceLimits(), 9.0, NOW)


def advised(of: ModelDemand, *workers: PoolWorker) -> ModelRebalance:
    view = updated(of, *workers)
    assert isinstance(view, RebalanceView)
    return view.advise(MoveLog())


def decode_heavy() -> ModelDemand:
    """Six prefill engines where one would do, one decode engine where two are needed."""
    found = paths([9.0] * 24)
    long = replace(found, output_tokens=found.output_tokens * 6)
    return demand(long, Fleet(prefill=6, decode=1))


def test_the_worker_with_the_fewest_requests_is_named() -> None:
    workers = (
        worker("p-1", requests=4.0),
        worker("p-2", requests=1.0),
        worker("p-3", requests=0.0, model="another"),
        worker("p-4", requests=0.0, supervised=False),
        worker("d-0", Role.DECODE, requests=0.0),
    )
    found = advised(decode_heavy(), *workers)

    assert isinstance(found.advice, Move)
    assert (found.advice.role, found.advice.to_role) == (Role.PREFILL, Role.DECODE)
    assert found.worker is not None
    assert found.worker.worker == "p-2"


def test_the_step_floor_of_decode_comes_from_its_step_times() -> None:
    view = updated(decode_heavy())

    assert isinstance(view, RebalanceView)
    assert 0 < view.needs.step_floor < 1


def test_without_observed_small_batches_use_is_proportional_to_load() -> None:
    class _Unseen(StretchedCosts):
        def step_seconds(self, *step: float) -> float:
            raise UnseenStepError("never seen")

    decode = options()[1]
    unseen = WorkerOption(Role.DECODE, _Unseen(decode.costs), decode.targets)
    mix = RequestMix(1.0, prompt_tokens=1000.0, output_tokens=100.0)

    assert step_floor(unseen, mix) == 1.0
    assert step_floor(decode, mix) < 1.0


def test_without_known_workers_only_the_role_is_advised() -> None:
    found = advised(decode_heavy())

    assert isinstance(found.advice, Move)
    assert found.worker is None


def test_equal_workers_are_ordered_by_name_and_unreported_ones_come_last() -> None:
    untold = worker("a", requests=None)

    assert cheapest([worker("c"), worker("b"), untold], Role.PREFILL) == worker("b")
    assert cheapest([untold], Role.PREFILL) == untold
    assert cheapest([untold], Role.DECODE) is None


def test_a_worker_that_is_left_out_is_not_named_and_without_others_nothing_moves() -> None:
    workers = (worker("p-1", requests=0.0), worker("p-2"), worker("d-0", Role.DECODE))
    view = updated(decode_heavy(), *workers)
    assert isinstance(view, RebalanceView)

    assert view.advise(MoveLog(), {("node-b", "p-1")}).worker == workers[0]
    assert view.advise(MoveLog(), {("node-a", "p-1")}).worker == workers[1]
    none = view.advise(MoveLog(), {each.id for each in workers[:2]})
    assert (none.worker, none.advice) == (
        None,
        Stay("every prefill engine refused or failed to move within an hour"),
    )


def test_use_of_a_pool_needs_half_of_its_gpus() -> None:
    pool = [worker("a", capacity_used=0.2), worker("b", capacity_used=0.6), worker("c")]

    assert pool_capacity_used(pool) == {Role.PREFILL: pytest.approx(0.4)}
    assert pool_capacity_used([*pool, worker("d"), worker("e")]) == {}


def test_engines_of_another_size_do_not_fit() -> None:
    of = demand(paths([5.0] * 24), of=(*PAIR, *options(gpus=2)))
    pools = (RunningEngines(Role.PREFILL, "A", 1, 4), RunningEngines(Role.DECODE, "A", 2, 2))
    found = updated(replace(of, running=pools))

    assert isinstance(found, ModelRebalance)
    assert found.advice == Stay(
        "engines do not fit the other role: prefill on 1 x A, decode on 2 x A"
    )


def test_a_model_without_two_pools_has_no_advice() -> None:
    of = demand(paths([5.0] * 24))

    assert updated(replace(of, running=(RunningEngines(Role.MIXED, "A", 1, 4),))) is None
    assert updated(replace(of, running=(RunningEngines(Role.PREFILL, "A", 1, 4),))) is None
    assert updated(replace(of, running=())) is None


def test_unknown_load_or_capacity_means_to_stay() -> None:
    undecided = updated(demand(UndecidedForecast("too short a past"), Fleet(4, 4)))
    unlearned = updated(demand(paths([5.0] * 24), Fleet(4, 4), of=PAIR[:1]))

    assert isinstance(undecided, ModelRebalance)
    assert isinstance(unlearned, ModelRebalance)
    assert undecided.advice == Stay("no forecast: too short a past")
    assert unlearned.advice == Stay("what steps of decode engines take is not known")


def history(values: list[float]) -> LoadHistory:
    series = LoadSeries(600.0, 60.0, np.array(values))
    return LoadHistory(LoadKey("east", "model"), series, series, series)


def test_observed_load_is_in_whole_blocks_up_to_the_last_known_step() -> None:
    of = history([1.0] * 12 + [np.nan] * 3)
    found = load_since(of, 660.0)

    assert found is not None
    assert (found.start_seconds, found.step_seconds, found.steps) == (660.0, 300.0, 2)
    assert load_since(of, 660.0 + 600.0) is None


def test_a_gap_counts_as_no_load_and_a_long_silence_gives_none() -> None:
    found = load_since(history([5.0, np.nan, 5.0, 5.0, 5.0]), 600.0)

    assert found is not None
    assert found.requests.tolist() == [[4.0]]
    assert load_since(history([np.nan] * 90), 600.0) is None
