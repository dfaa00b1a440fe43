"""Whose engines may take each other's place, and which of them is named."""

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
from disagg_cluster.planner.rebalance.came_load import came_since
from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.model_rebalance import (
    ModelRebalance,
    RebalanceView,
    rebalance_view,
)
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
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


def looked_at(of: ModelDemand, *workers: PoolWorker) -> RebalanceView | ModelRebalance | None:
    return rebalance_view(of, workers, COST, RebalanceLimits(), 9.0, NOW)


def advised(of: ModelDemand, *workers: PoolWorker) -> ModelRebalance:
    view = looked_at(of, *workers)
    assert isinstance(view, RebalanceView)
    return view.advised(MoveLog())


def decode_heavy() -> ModelDemand:
    """Six engines prefill what one could, and one decodes what two should."""
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
    said = advised(decode_heavy(), *workers)

    assert isinstance(said.said, Move)
    assert (said.said.role, said.said.to_role) == (Role.PREFILL, Role.DECODE)
    assert said.worker is not None
    assert said.worker.worker == "p-2"


def test_how_decode_steps_shrink_with_their_batch_is_known_of_its_steps() -> None:
    view = looked_at(decode_heavy())

    assert isinstance(view, RebalanceView)
    assert 0 < view.needs.step_floor < 1


def test_where_steps_of_few_requests_were_never_seen_fullness_goes_with_the_load() -> None:
    class _Unseen(StretchedCosts):
        def step_seconds(self, *step: float) -> float:
            raise UnseenStepError("never seen")

    decode = options()[1]
    unseen = WorkerOption(Role.DECODE, _Unseen(decode.costs), decode.targets)
    mix = RequestMix(1.0, prompt_tokens=1000.0, output_tokens=100.0)

    assert step_floor(unseen, mix) == 1.0
    assert step_floor(decode, mix) < 1.0


def test_where_no_engine_is_known_by_name_the_role_is_advised_all_the_same() -> None:
    said = advised(decode_heavy())

    assert isinstance(said.said, Move)
    assert said.worker is None


def test_of_equal_workers_the_first_by_name_and_of_untold_ones_the_last() -> None:
    untold = worker("a", requests=None)

    assert cheapest([worker("c"), worker("b"), untold], Role.PREFILL) == worker("b")
    assert cheapest([untold], Role.PREFILL) == untold
    assert cheapest([untold], Role.DECODE) is None


def test_a_pool_is_as_full_as_its_gpus_of_which_half_are_known() -> None:
    pool = [worker("a", capacity_used=0.2), worker("b", capacity_used=0.6), worker("c")]

    assert pool_capacity_used(pool) == {Role.PREFILL: pytest.approx(0.4)}
    assert pool_capacity_used([*pool, worker("d"), worker("e")]) == {}


def test_engines_of_another_size_do_not_fit() -> None:
    of = demand(paths([5.0] * 24), of=(*PAIR, *options(gpus=2)))
    pools = (RunningEngines(Role.PREFILL, "A", 1, 4), RunningEngines(Role.DECODE, "A", 2, 2))
    said = looked_at(replace(of, running=pools))

    assert isinstance(said, ModelRebalance)
    assert said.said == Stay("engines do not fit the other role: prefill on 1 x A, decode on 2 x A")


def test_a_model_without_two_pools_has_nothing_to_give() -> None:
    of = demand(paths([5.0] * 24))

    assert looked_at(replace(of, running=(RunningEngines(Role.MIXED, "A", 1, 4),))) is None
    assert looked_at(replace(of, running=(RunningEngines(Role.PREFILL, "A", 1, 4),))) is None
    assert looked_at(replace(of, running=())) is None


def test_what_is_not_known_leaves_everything_where_it_is() -> None:
    undecided = looked_at(demand(UndecidedForecast("too short a past"), Fleet(4, 4)))
    unlearned = looked_at(demand(paths([5.0] * 24), Fleet(4, 4), of=PAIR[:1]))

    assert isinstance(undecided, ModelRebalance)
    assert isinstance(unlearned, ModelRebalance)
    assert undecided.said == Stay("no forecast: too short a past")
    assert unlearned.said == Stay("what steps of decode engines take is not known")


def history(values: list[float]) -> LoadHistory:
    series = LoadSeries(600.0, 60.0, np.array(values))
    return LoadHistory(LoadKey("east", "model"), series, series, series)


def test_the_load_that_came_is_told_in_whole_blocks_up_to_the_last_that_is_known() -> None:
    of = history([1.0] * 12 + [np.nan] * 3)
    found = came_since(of, 660.0)

    assert found is not None
    assert (found.start_seconds, found.step_seconds, found.steps) == (660.0, 300.0, 2)
    assert came_since(of, 660.0 + 600.0) is None


def test_a_gap_in_what_came_is_no_load_and_a_long_silence_is_nothing() -> None:
    found = came_since(history([5.0, np.nan, 5.0, 5.0, 5.0]), 600.0)

    assert found is not None
    assert found.requests.tolist() == [[4.0]]
    assert came_since(history([np.nan] * 90), 600.0) is None
