from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.advice.plan_text import plan_text
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.forecast.load_forecast import UndecidedForecast
from disagg_cluster.planner.forecast.paths import LoadPaths, forecast_paths
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds
from disagg_cluster.planner.plan.gpu_plan import (
    SHORT_QUANTILE,
    GpuPlan,
    ModelPlan,
    PlanActionKind,
    RolePlan,
    UndecidedPlan,
)
from disagg_cluster.planner.plan.model_demand import ModelDemand, RunningEngines
from disagg_cluster.planner.plan.planner import plan
from disagg_cluster.planner.plan.schedule import PlanTiming
from disagg_cluster.planner.plan.worker_option import WorkerOption
from disagg_exporter.model import Role
from support.plan_demands import (
    BLOCK,
    NOW,
    OUTPUT,
    PAIR,
    PROMPT,
    TARGETS,
    Fleet,
    LinearCosts,
    costs,
    demand,
    options,
    paths,
)

TIMING = PlanTiming(lead_seconds=300.0)
OPEN = PlanBounds((GpuOffer("A", price_per_hour=2.0), GpuOffer("B", price_per_hour=1.0)))
LOADS = st.lists(st.floats(0.0, 200.0), min_size=4, max_size=30)
FLEETS = st.builds(Fleet, st.integers(0, 30), st.integers(0, 30))


def planned(*demands: ModelDemand, bounds: PlanBounds = OPEN) -> GpuPlan:
    return plan(demands, bounds, TIMING, NOW)


def model(found: GpuPlan, index: int = 0) -> ModelPlan:
    outcome = found.models[index]
    assert isinstance(outcome, ModelPlan)
    return outcome


def role(found: GpuPlan, of: Role, gpu_name: str = "A", index: int = 0) -> RolePlan:
    return next(
        each for each in model(found, index).roles if (each.role, each.gpu_name) == (of, gpu_name)
    )


def gpus(found: GpuPlan, kind: str = "recommended") -> list[int]:
    """GPUs at every horizon and quantile of every role, in one order."""
    return [
        getattr(row, kind)
        for outcome in found.models
        if isinstance(outcome, ModelPlan)
        for each in outcome.roles
        for row in each.rows
    ]


@settings(max_examples=25, deadline=None)
@given(LOADS, FLEETS, st.floats(0.0, 0.8))
def test_recommended_is_never_below_needed_after_the_lead_time(
    load: list[float], fleet: Fleet, spread: float
) -> None:
    found = planned(demand(paths(load, spread), fleet))

    for each in model(found).roles:
        for row in each.rows:
            if row.quantile == 0.9 and row.horizon_seconds > TIMING.lead_seconds:
                assert row.recommended >= row.needed
                assert row.shortfall == 0


@settings(max_examples=25, deadline=None)
@given(LOADS, FLEETS, st.floats(0.0, 0.8), st.floats(1.0, 5.0))
def test_more_load_never_brings_fewer_gpus(
    load: list[float], fleet: Fleet, spread: float, factor: float
) -> None:
    futures = paths(load, spread)
    less, more = (gpus(planned(demand(of, fleet))) for of in (futures, futures.scaled(factor)))

    assert all(after >= before for before, after in zip(less, more, strict=True))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(LOADS, min_size=1, max_size=3),
    FLEETS,
    st.integers(0, 40),
    st.integers(1, 8),
    st.one_of(st.none(), st.floats(0.0, 60.0)),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_bounds_are_never_exceeded_and_reported_where_they_bind(
    loads: list[list[float]],
    fleet: Fleet,
    most: int,
    node: int,
    budget: float | None,
    most_engines: int | None,
) -> None:
    offer = GpuOffer("A", most, gpus_per_node=node, price_per_hour=2.0)
    bounds = PlanBounds((offer,), most_engines=most_engines, budget_per_hour=budget)
    few = Fleet(0, 0)
    demands = [demand(paths(load), few, name=str(n)) for n, load in enumerate(loads)]
    found = planned(*demands, bounds=bounds)

    for horizon in {row.horizon_seconds for each in model(found).roles for row in each.rows}:
        rows = [
            row
            for outcome in found.models
            if isinstance(outcome, ModelPlan)
            for each in outcome.roles
            for row in each.rows
            if row.horizon_seconds == horizon and row.quantile == 0.9
        ]
        held = sum(row.recommended for row in rows)
        assert held <= most // node * node
        assert budget is None or held * 2.0 <= budget + 1e-6
        assert most_engines is None or all(row.recommended <= most_engines for row in rows)
        if horizon > TIMING.lead_seconds and any(row.shortfall for row in rows):
            assert found.bounds


def test_running_gpus_without_an_offer_do_not_prevent_a_plan_with_a_budget() -> None:
    bounds = PlanBounds((GpuOffer("A", price_per_hour=2.0),), budget_per_hour=12.0)
    unlisted = RunningEngines(Role.MIXED, "L20", 1, 2)
    alone = plan([], bounds, TIMING, NOW, others=[unlisted])
    found = plan([demand(paths([60.0] * 12), Fleet(1, 1))], bounds, TIMING, NOW, others=[unlisted])

    assert (alone.models, alone.bounds) == ((), ())
    # The whole budget is for the GPUs that have a price.
    assert sum(each.rows[-1].recommended for each in model(found).roles) == 6
    assert found.bounds[0].startswith("a budget of 12 an hour from ")


def test_a_model_keeps_running_gpus_without_an_offer_under_a_budget_and_gets_no_more() -> None:
    bounds = PlanBounds((GpuOffer("B", price_per_hour=2.0),), budget_per_hour=4.0)
    others = [RunningEngines(Role.MIXED, "B", 1, 4)]
    found = plan([demand(paths([60.0] * 12), Fleet(3, 2))], bounds, TIMING, NOW, others=others)

    # Engines of others exceed the budget already.
    assert sum(each.rows[-1].recommended for each in model(found).roles) == 5
    assert model(found).following.money is None
    assert found.actions == ()


def test_engines_of_others_beyond_an_offer_leave_gpus_of_another_name_to_plan() -> None:
    bounds = PlanBounds((GpuOffer("A", 16, gpus_per_node=1), GpuOffer("B", 2, gpus_per_node=1)))
    others = [RunningEngines(Role.MIXED, "B", 1, 4)]
    both = options("A") + options("B")
    found = plan([demand(paths([20.0] * 12), Fleet(3, 1), both)], bounds, TIMING, NOW, None, others)

    assert all(row.shortfall == 0 for each in model(found).roles for row in each.rows[-3:])


def test_a_bound_that_binds_is_named_with_what_it_leaves_short() -> None:
    bounds = PlanBounds((GpuOffer("A", 4, gpus_per_node=1),))
    found = planned(demand(paths([60.0] * 12), Fleet(1, 1)), bounds=bounds)

    (bound,) = found.bounds
    assert bound.startswith("at most 4 A from ")
    assert "GPUs short" in bound


def test_a_plan_says_that_a_cache_of_unknown_size_bounds_nothing() -> None:
    of = LinearCosts(replace(costs().shape, kv_tokens=None))
    unsized = tuple(WorkerOption(each, of, TARGETS) for each in (Role.PREFILL, Role.DECODE))

    found = planned(demand(paths([6.0] * 12), of=unsized))

    said = "the size of their KV cache is not known: it bounds nothing here"
    by_role = {each.role: "; ".join(each.reasons) for each in model(found).roles}
    assert said in by_role[Role.DECODE]
    assert said not in by_role[Role.PREFILL]
    of_known = model(planned(demand(paths([6.0] * 12))))
    assert not any(said in reason for each in of_known.roles for reason in each.reasons)


def test_engines_that_bounds_take_away_are_not_called_unneeded() -> None:
    few = PlanBounds((GpuOffer("A", 2, gpus_per_node=1, price_per_hour=1.0),))

    found = planned(demand(paths([60.0] * 12), Fleet(3, 3)), bounds=few)

    for each in model(found).roles:
        told = "; ".join(each.reasons)
        assert "must go though needed: the bounds leave no more" in told
        assert "not needed" not in told


@pytest.mark.parametrize(
    ("most_gpus", "lead_seconds", "why"),
    [
        (2, 300.0, "will be missing: the bounds leave no more"),
        (3, 300.0, "will be missing: the bounds leave no more"),
        (99, 7200.0, "take 120 minutes to start"),
    ],
)
def test_too_few_engines_are_not_called_enough(
    most_gpus: int, lead_seconds: float, why: str
) -> None:
    bounds = PlanBounds((GpuOffer("A", most_gpus, gpus_per_node=1),))
    load = demand(paths([60.0] * 12), Fleet(1, 1))

    found = plan([load], bounds, PlanTiming(lead_seconds), NOW)

    for each in model(found).roles:
        told = "; ".join(each.reasons)
        assert why in told
        assert "enough" not in told


def test_engines_beside_those_of_another_name_lack_none() -> None:
    bounds = PlanBounds(
        (GpuOffer("A", 4, gpus_per_node=1, price_per_hour=1.0), GpuOffer("B", price_per_hour=3.0))
    )

    found = planned(
        demand(paths([60.0] * 12), Fleet(2, 2), options("A") + options("B")), bounds=bounds
    )

    for each in model(found).roles:
        assert not any("will be missing" in reason for reason in each.reasons)


def test_scarce_gpus_fill_both_roles_evenly() -> None:
    """A full prefill pool is of no use behind half a decode pool."""
    load = paths([60.0] * 12)
    plenty = planned(demand(load))
    wanted = [role(plenty, of).rows[-1].recommended for of in (Role.PREFILL, Role.DECODE)]
    half = PlanBounds((GpuOffer("A", sum(wanted) // 2, gpus_per_node=1),))
    scarce = planned(demand(load), bounds=half)
    given_ = [role(scarce, of).rows[-1].recommended for of in (Role.PREFILL, Role.DECODE)]

    assert sum(given_) == sum(wanted) // 2
    assert all(abs(got - want / 2) <= 1 for got, want in zip(given_, wanted, strict=True))


def test_a_constant_noisy_load_causes_no_action_in_a_day() -> None:
    """Once set, the pools stay unchanged through 24 hours of varying forecasts."""
    rng = np.random.default_rng(5)
    steps = 576
    requests = 40 * np.exp(rng.normal(0, 0.06, steps))
    prompt = requests * PROMPT * np.exp(rng.normal(0, 0.03, steps))
    output = requests * OUTPUT * np.exp(rng.normal(0, 0.03, steps))
    fleet = Fleet(1, 1)
    changes = []
    for origin in range(288, 576, 24):
        start = NOW - origin * BLOCK
        past = [LoadSeries(start, BLOCK, of[:origin]) for of in (requests, prompt, output)]
        futures = forecast_paths(past[0], past[1], past[2], 24)
        assert isinstance(futures, LoadPaths)
        found = planned(demand(futures, fleet))
        engines = [role(found, of).engines_now for of in (Role.PREFILL, Role.DECODE)]
        changes.append(engines != [fleet.prefill, fleet.decode])
        fleet = Fleet(*engines)

    assert changes == [True] + [False] * 11


def test_engines_for_a_rising_load_are_ordered_a_lead_time_before() -> None:
    load = [20.0] * 6 + [80.0] * 6
    found = planned(demand(paths(load), Fleet(3, 1)))
    added = next(each for each in found.actions if each.role is Role.PREFILL)

    assert added.kind is PlanActionKind.ADD
    assert added.at_seconds == NOW + 6 * BLOCK - TIMING.lead_seconds


def test_engines_that_may_go_are_not_needed_until_the_first_of_them_is() -> None:
    """Two of three go; one is back after an hour, both after two."""
    load = [1.0] * 12 + [10.0] * 12 + [25.0] * 12
    prefill = role(planned(demand(paths(load), Fleet(3, 3))), Role.PREFILL)

    assert [prefill.course.serving[block] for block in (0, 12, 24)] == [1, 2, 3]
    assert "at 10:00 UTC 2 of 3 may go: not needed until 11:00 UTC, even with 10 % more load" in (
        prefill.reasons
    )


def test_the_course_of_a_role_has_every_change_and_agrees_with_its_rows() -> None:
    found = planned(demand(paths([50.0] * 4 + [300.0] * 9), Fleet(1, 1)))
    prefill = role(found, Role.PREFILL)
    course = prefill.course

    changed = np.flatnonzero(np.diff([1, *course.serving]))
    starts = [course.start_seconds + course.step_seconds * int(block) for block in changed]
    ordered = [each.at_seconds for each in found.actions if each.role is Role.PREFILL]
    assert starts == [at + TIMING.lead_seconds for at in ordered]
    assert len(starts) > 1
    for row in prefill.rows[3:]:
        block = int(row.horizon_seconds // BLOCK) - 1
        assert course.serving[block] == row.recommended
        assert course.needed[row.quantile][block] == row.needed


def test_a_bound_is_reported_with_the_most_it_leaves_short_not_the_last() -> None:
    bounds = PlanBounds((GpuOffer("A", 2, gpus_per_node=1),))
    load = [100.0] * 6 + [12.0] * 6

    found = planned(demand(paths(load), Fleet(1, 1)), bounds=bounds)

    short = sum(
        max(row.shortfall for row in role(found, of).rows if row.quantile == 0.9)
        for of in (Role.PREFILL, Role.DECODE)
    )
    (bound,) = found.bounds
    assert f"at most {short} GPUs short" in bound


def test_a_dip_shorter_than_the_hold_time_releases_nothing() -> None:
    load = [80.0] * 6 + [10.0] * 4 + [80.0] * 6
    steady = planned(demand(paths([80.0] * 16)))
    fleet = Fleet(*(role(steady, of).rows[-1].recommended for of in (Role.PREFILL, Role.DECODE)))
    found = planned(demand(paths(load), fleet))

    assert found.actions == ()


def test_a_young_model_leaves_the_plan_of_others_as_it_is() -> None:
    """Engines would go that are needed again within the hold time."""
    old = demand(paths([40.0] * 4 + [100.0] * 20), Fleet(12, 12), name="old")
    young = demand(paths([5.0] * 3), name="young")

    alone, both = planned(old), planned(old, young)

    assert model(both) == model(alone)
    assert both.horizon_seconds == alone.horizon_seconds
    assert [each for each in both.actions if each.model_name == "old"] == list(alone.actions)
    assert {row.horizon_seconds for row in role(both, Role.DECODE, index=1).rows} == {0, 300, 900}
    assert plan_text(both).count("planned for 15m only: its history is short") == 1


def test_engines_that_start_more_slowly_than_a_load_is_forecast_are_ordered_now() -> None:
    surge = demand(paths([100.0] * 3), Fleet(2, 2))

    found = plan([surge], OPEN, PlanTiming(lead_seconds=1200.0), NOW)

    assert [(each.kind, each.at_seconds) for each in found.actions] == [
        (PlanActionKind.ADD, NOW),
        (PlanActionKind.ADD, NOW),
    ]
    assert all(each.engines_now >= each.rows[0].needed for each in model(found).roles)
    assert found.horizon_seconds == model(found).horizon_seconds == 900.0


@pytest.mark.parametrize("since_seconds", [0.0, 20.0, 59.0, 299.0])
def test_engines_ordered_now_are_recommended_beyond_their_lead_time_whenever_the_history_ended(
    since_seconds: float,
) -> None:
    """Autoscalers read one horizon: there the order must appear at any second of a minute."""
    surge = demand(paths([100.0] * 12, start=NOW - since_seconds), Fleet(2, 2))

    found = plan([surge], OPEN, PlanTiming(lead_seconds=600.0), NOW)

    for each in model(found).roles:
        later = {row.horizon_seconds: row.recommended for row in each.rows}
        assert each.engines_now > 2
        assert later[300] == 2
        assert later[900] == later[1800] == each.engines_now


def test_engines_that_one_role_gives_up_move_to_the_other() -> None:
    """Prompts got shorter and outputs longer: the same GPUs change their role."""
    futures = paths([30.0] * 24)
    long = LoadPaths(
        NOW, BLOCK, futures.requests, futures.prompt_tokens / 4, futures.output_tokens * 6
    )
    found = planned(demand(long, Fleet(8, 2)))

    moved = [each for each in found.actions if each.kind is PlanActionKind.MOVE]
    assert [(each.role, each.to_role) for each in moved] == [(Role.PREFILL, Role.DECODE)]
    assert all(each.engines for each in found.actions)


def test_plans_have_whole_engines_in_whole_nodes() -> None:
    bounds = PlanBounds((GpuOffer("A", 23, gpus_per_node=8),))
    found = planned(demand(paths([500.0] * 6), Fleet(1, 1, gpus=4), options(gpus=4)), bounds=bounds)

    assert all(count % 4 == 0 for count in gpus(found))
    last = [each.rows[-1].recommended for each in model(found).roles]
    assert sum(last) == 16


def test_the_cheaper_gpus_take_a_new_model_and_only_clearly_cheaper_ones_a_running_one() -> None:
    both = options("A") + options("B")
    new = planned(demand(paths([30.0] * 12), Fleet(0, 0), both))
    slow = options("A") + options("B", slowness=1.5)
    stays = planned(demand(paths([30.0] * 12), Fleet(4, 2), slow))

    assert {each.gpu_name for each in model(new).roles} == {"B"}
    assert {each.gpu_name for each in model(stays).roles if each.engines_now} >= {"A"}


def test_gpus_that_cost_nothing_are_the_cheapest_and_two_such_names_do_not_swap() -> None:
    """Own GPUs beside rented ones: a price of 0 is a price."""
    both = options("A") + options("B", slowness=1.1)
    own = PlanBounds((GpuOffer("A", price_per_hour=2.0), GpuOffer("B", price_per_hour=0.0)))
    free = PlanBounds((GpuOffer("A", price_per_hour=0.0), GpuOffer("B", price_per_hour=0.0)))
    load = paths([30.0] * 12)

    new = planned(demand(load, Fleet(0, 0), both), bounds=own)
    stays = planned(demand(load, Fleet(4, 2), options("B") + options("A")), bounds=free)

    assert {each.gpu_name for each in model(new).roles} == {"B"}
    assert {each.gpu_name for each in model(stays).roles} == {"A"}


def test_gpus_of_another_name_fill_in_where_there_are_no_more_of_the_first() -> None:
    bounds = PlanBounds(
        (GpuOffer("A", 4, gpus_per_node=1, price_per_hour=1.0), GpuOffer("B", price_per_hour=3.0))
    )
    both = options("A") + options("B")
    found = planned(demand(paths([60.0] * 12), Fleet(2, 2), both), bounds=bounds)

    rows = [role(found, Role.PREFILL, name).rows[-1] for name in ("A", "B")]
    assert rows[1].recommended > 0
    assert all(row.shortfall == 0 for row in rows)


def test_no_model_no_load_and_a_huge_load_can_be_planned() -> None:
    empty = planned()
    zero = planned(demand(paths([0.0] * 12), Fleet(3, 3)))
    huge = planned(demand(paths([1e6] * 12), Fleet(0, 0)))

    assert (empty.models, empty.actions) == ((), ())
    assert [role(zero, of).engines_now for of in (Role.PREFILL, Role.DECODE)] == [1, 1]
    assert role(huge, Role.PREFILL).rows[-1].recommended > 100_000


def test_without_load_the_reasons_name_engines_that_are_kept_and_no_limit() -> None:
    """As the rows, which need 0 GPUs."""
    found = role(planned(demand(paths([0.0] * 12), Fleet(3, 3))), Role.PREFILL)
    alone = role(planned(demand(paths([0.0] * 12), Fleet(1, 1))), Role.PREFILL)

    assert {row.needed for row in found.rows} == {0}
    kept = "90 % of futures need no engine in the next 1 h; 1 is kept at least"
    assert found.reasons[0] == kept
    assert not any("limit" in each for each in found.reasons)
    assert "2 of 3 may go" in found.reasons[1]
    assert alone.reasons == (kept, "the present one is enough, and none too many: nothing to do")


def test_a_short_horizon_is_given_in_minutes() -> None:
    found = role(planned(demand(paths([9.0] * 3))), Role.PREFILL)

    assert "the most of the next 15 minutes" in found.reasons[0]


def test_a_model_without_a_forecast_is_undecided_and_keeps_its_gpus() -> None:
    bounds = PlanBounds((GpuOffer("A", 8, gpus_per_node=1),))
    unknown = demand(UndecidedForecast("3 steps of history"), Fleet(2, 3), name="new")
    found = planned(unknown, demand(paths([500.0] * 12), Fleet(1, 1)), bounds=bounds)

    assert found.models[0] == UndecidedPlan("new", "default", "no forecast: 3 steps of history")
    assert sum(each.rows[-1].recommended for each in model(found, 1).roles) == 3


def test_unreachable_targets_leave_a_model_undecided() -> None:
    hopeless = options(targets=Targets(0.05, 0.05))
    found = planned(demand(paths([5.0] * 12), of=hopeless))

    (outcome,) = found.models
    assert isinstance(outcome, UndecidedPlan)
    assert "no capacity for prefill" in outcome.reason
    assert outcome.reason.endswith(" tokens: the time to first token")


def test_prompts_too_long_for_their_target_get_a_plan_that_says_so() -> None:
    """Targets out of reach for an hour must not leave the pool without a plan."""
    tight = options(targets=Targets(0.42, 0.05))
    longer = paths([40.0] * 12).scaled(prompt_length=2.0)
    shorter = paths([40.0] * 12).scaled(prompt_length=0.5)
    hopeless, held = (
        role(planned(demand(of, Fleet(8, 2), tight)), Role.PREFILL) for of in (longer, shorter)
    )

    assert any("too long for the targets" in each for each in hopeless.reasons)
    assert not any("too long for the targets" in each for each in held.reasons)
    assert hopeless.rows[-1].needed > held.rows[-1].needed


def test_an_ended_forecast_leaves_a_model_undecided() -> None:
    found = planned(demand(paths([5.0] * 12, start=NOW - 3600)))

    assert found.models == (
        UndecidedPlan("model", "default", "no forecast: its forecast ended before now"),
    )


@settings(max_examples=30, deadline=None)
@given(LOADS, FLEETS)
def test_every_plan_has_reasons_and_the_error_of_forecasts(load: list[float], fleet: Fleet) -> None:
    outcome = model(planned(demand(paths(load), fleet)))

    assert outcome.error_so_far
    assert all(each.reasons for each in outcome.roles)


def test_doing_nothing_costs_minutes_over_target() -> None:
    outcome = model(planned(demand(paths([80.0] * 12), Fleet(1, 1))))

    assert outcome.doing_nothing.minutes_over_target == 60.0
    assert outcome.following.minutes_over_target == 5.0
    assert outcome.following.money == pytest.approx(2 * outcome.following.gpu_hours)


def test_engines_ordered_now_are_short_until_they_serve() -> None:
    found = planned(demand(paths([100.0] * 12), Fleet(1, 1)))

    for each in model(found).roles:
        now = next(row for row in each.rows if row.quantile == 0.9)
        assert (now.horizon_seconds, now.current) == (0.0, 1)
        assert now.recommended == now.needed > 1
        assert now.shortfall == now.needed - 1


def test_far_more_load_than_gpus_still_gets_all_of_them() -> None:
    bounds = PlanBounds((GpuOffer("A", 16, gpus_per_node=1),))

    found = planned(demand(paths([1e7] * 12), Fleet(1, 1)), bounds=bounds)

    last = [each.rows[-1].recommended for each in model(found).roles]
    assert sum(last) == 16
    assert min(last) > 1


@pytest.mark.parametrize("own", [True, False])
def test_gpus_of_engines_without_a_decision_are_not_given_away(own: bool) -> None:
    """Engines of a kind that has learned nothing yet, or of a model without a plan."""
    bounds = PlanBounds((GpuOffer("A", 10, gpus_per_node=1),))
    unlearned = RunningEngines(Role.DECODE, "A", 2, 3)
    asked = demand(paths([500.0] * 12), Fleet(1, 1))
    if own:
        asked = replace(asked, running=(*asked.running, unlearned))

    found = plan([asked], bounds, TIMING, NOW, others=() if own else (unlearned,))

    assert sum(each.rows[-1].recommended for each in model(found).roles) == 4


def test_engines_that_bounds_exclude_are_not_announced_after_a_start() -> None:
    def missing(most_gpus: int) -> bool:
        bounds = PlanBounds((GpuOffer("A", most_gpus, gpus_per_node=1),))
        found = planned(demand(paths([500.0] * 12), Fleet(1, 1)), bounds=bounds)
        return any("missing until then" in reason for reason in role(found, Role.PREFILL).reasons)

    assert missing(1000)
    assert not missing(2)


def test_models_with_different_steps_are_refused() -> None:
    slow = paths([5.0] * 12)
    other = LoadPaths(NOW, 900.0, slow.requests, slow.prompt_tokens, slow.output_tokens)

    with pytest.raises(ValueError, match="one clock"):
        planned(demand(slow), demand(other))


def test_a_kept_option_caches_its_curves() -> None:
    first, second = (planned(demand(paths([40.0] * 6), of=PAIR)) for _ in range(2))

    assert first == second


_THREE_ROLES = (*PAIR, WorkerOption(Role.MIXED, costs(), PAIR[0].targets))


def beside(mixed: int, of: tuple[WorkerOption, ...], load: float = 60.0) -> GpuPlan:
    """One prefill and one decode engine beside mixed ones."""
    pair = demand(paths([load] * 12, 0.2), Fleet(1, 1), of)
    engines = (*pair.running, RunningEngines(Role.MIXED, "A", 1, mixed))
    return planned(replace(pair, running=engines))


def needed_engines(found: GpuPlan) -> int:
    return sum(each.rows[-1].needed for each in model(found).roles)


def test_mixed_engines_beside_a_pair_leave_it_only_the_rest_of_the_load() -> None:
    """The first pair of a fleet that is to be separated is not planned for all of it."""
    alone, one, few, nearly_all, plenty = (beside(n, _THREE_ROLES) for n in (0, 1, 6, 12, 40))

    assert needed_engines(alone) > needed_engines(few) > needed_engines(nearly_all) == 2
    assert [each.engines_now for each in model(plenty).roles] == [1, 1]
    assert all(
        "6 mixed engines of 1 x A serve what they can, and these engines the rest" in each.reasons
        for each in model(few).roles
    )
    assert "1 mixed engine of 1 x A serves what it can, and these engines the rest" in (
        model(one).roles[0].reasons
    )
    assert not any("mixed" in reason for each in model(alone).roles for reason in each.reasons)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 30), st.floats(0.0, 200.0), st.floats(1.0, 5.0))
def test_more_load_never_brings_fewer_gpus_beside_mixed_engines(
    mixed: int, load: float, factor: float
) -> None:
    less, more = (gpus(beside(mixed, _THREE_ROLES, of)) for of in (load, load * factor))

    assert all(after >= before for before, after in zip(less, more, strict=True))


def test_engines_that_serve_an_unknown_part_of_the_load_are_named() -> None:
    """Such as the first ones on other GPUs, which have learned no step times yet."""
    first = RunningEngines(Role.DECODE, "B", 2, 3)
    pair = demand(paths([60.0] * 12), Fleet(1, 1))
    found = planned(replace(pair, running=(*pair.running, first)))
    unknown = "serve it, too, and are not counted: how much is not known"

    assert f"3 decode engines of 2 x B {unknown}" in role(found, Role.DECODE).reasons
    assert not any(unknown in reason for reason in role(found, Role.PREFILL).reasons)
    for each in model(beside(4, PAIR)).roles:
        assert f"4 mixed engines of 1 x A {unknown}" in each.reasons
    (mixed,) = model(beside(4, _THREE_ROLES[2:])).roles
    one = "serves it, too, and is not counted: how much is not known"
    assert f"1 decode engine of 1 x A {one}" in mixed.reasons


def test_a_plan_that_provides_what_is_needed_is_not_called_short() -> None:
    """The rarer futures of the 95 % column lack GPUs, as they are meant to."""
    found = planned(demand(paths([200.0] * 12, 0.6), Fleet(20, 20)))
    later = [row for each in model(found).roles for row in each.rows if row.horizon_seconds > 300.0]

    shown = [line.split() for line in plan_text(found).splitlines() if line.startswith("1h ")]

    assert any(row.shortfall for row in later if row.quantile > SHORT_QUANTILE)
    assert [cells[-1] for cells in shown] == ["0", "0"]
