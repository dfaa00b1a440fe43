from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.decode_pool import decode_capacity, decode_pool
from disagg_cluster.planner.capacity.engine_costs import EngineCosts, StretchedCosts
from disagg_cluster.planner.capacity.mixed_pool import mixed_capacity
from disagg_cluster.planner.capacity.pool_capacity import PoolCapacity
from disagg_cluster.planner.capacity.prefill_pool import prefill_capacity
from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.engine.hardware import H100, LLAMA_8B

COSTS = priced_costs(H100, LLAMA_8B, 1)
TARGETS = Targets(ttft_seconds=0.5, itl_seconds=0.03)
CHAT = RequestMix(1.0, prompt_tokens=1155, output_tokens=211)

POOLS = {"prefill": prefill_capacity, "decode": decode_capacity, "mixed": mixed_capacity}

mixes = st.builds(
    RequestMix,
    requests_per_second=st.just(1.0),
    prompt_tokens=st.floats(1, 20_000),
    output_tokens=st.floats(1, 4_000),
    cached_tokens=st.floats(0, 10_000),
    arrival_dispersion=st.floats(0, 20),
    prompt_dispersion=st.floats(0, 4),
    output_dispersion=st.floats(0, 4),
    context_factor=st.floats(0.1, 4),
)


def _targets(least_attainment: float) -> st.SearchStrategy[Targets]:
    return st.builds(
        Targets,
        ttft_seconds=st.floats(0.01, 10),
        itl_seconds=st.floats(0.002, 1),
        attainment=st.floats(least_attainment, 0.999),
    )


targets = _targets(0.5)
# Where a fifth of all requests may be slow, the mean may be slower than the target, and then more
# fluctuation lets more of them meet it.
usual_targets = _targets(0.9)
roles = st.sampled_from(sorted(POOLS))


def requests_per_second(
    role: str, mix: RequestMix, wanted: Targets, engines: int, costs: EngineCosts = COSTS
) -> float:
    found = POOLS[role](costs, mix, wanted, engines)
    assert isinstance(found, PoolCapacity)
    return found.requests_per_second


@given(roles, mixes, targets, st.integers(1, 64))
@settings(max_examples=25, deadline=None)
def test_capacity_utilization_and_batch_are_within_their_bounds(
    role: str, mix: RequestMix, wanted: Targets, engines: int
) -> None:
    found = POOLS[role](COSTS, mix, wanted, engines)

    assert isinstance(found, PoolCapacity)
    assert found.requests_per_second >= 0
    assert 0 <= found.utilization <= 1
    assert 0 <= found.batch <= COSTS.shape.max_num_seqs


@given(roles, mixes, usual_targets, st.integers(1, 32))
@settings(max_examples=25, deadline=None)
def test_an_engine_in_a_larger_pool_serves_no_less(
    role: str, mix: RequestMix, wanted: Targets, engines: int
) -> None:
    # Arrivals more regular than chance are so for an engine alone, not for one of several.
    mix = replace(mix, arrival_dispersion=max(1.0, mix.arrival_dispersion))
    few = requests_per_second(role, mix, wanted, engines)
    many = requests_per_second(role, mix, wanted, 2 * engines)

    assert many >= 2 * few * 0.99


def test_regular_arrivals_are_not_regular_for_each_of_several_engines() -> None:
    even = RequestMix(1.0, 2870, 1, arrival_dispersion=0, prompt_dispersion=0)
    wanted = Targets(ttft_seconds=1.0, itl_seconds=0.5, attainment=0.9375)

    alone, together = (requests_per_second("mixed", even, wanted, count) for count in (1, 2))

    assert 0.95 * alone < together / 2 < alone


def test_answers_of_one_or_two_tokens_meet_no_target_that_their_mean_misses() -> None:
    """Their ITLs are so unequal that most would be far below the mean."""
    short = RequestMix(
        1.0, 485, 1.17, 4866, arrival_dispersion=5.8, prompt_dispersion=3.6, output_dispersion=2.06
    )
    wanted = Targets(ttft_seconds=6.8, itl_seconds=0.004, attainment=0.967)

    assert COSTS.step_seconds(0, 0, 1, 1000) > wanted.itl_seconds
    assert requests_per_second("mixed", short, wanted, 8) == 0


@given(roles, mixes, usual_targets, st.integers(1, 8), st.floats(1.1, 5))
@settings(max_examples=25, deadline=None)
def test_burstier_arrivals_never_raise_the_capacity(
    role: str, mix: RequestMix, wanted: Targets, engines: int, factor: float
) -> None:
    bursty = replace(mix, arrival_dispersion=mix.arrival_dispersion * factor)

    assert requests_per_second(role, bursty, wanted, engines) <= 1.01 * requests_per_second(
        role, mix, wanted, engines
    )


@given(roles, mixes, targets, st.integers(1, 8), st.floats(0.2, 0.9))
@settings(max_examples=25, deadline=None)
def test_tighter_targets_never_raise_the_capacity(
    role: str, mix: RequestMix, wanted: Targets, engines: int, factor: float
) -> None:
    loose = requests_per_second(role, mix, wanted, engines)
    if role != "prefill":  # where decode steps are a part of TTFT
        quicker = replace(wanted, itl_seconds=wanted.itl_seconds * factor)
        assert requests_per_second(role, mix, quicker, engines) <= 1.01 * loose
    sooner = replace(wanted, ttft_seconds=wanted.ttft_seconds * factor)
    assert requests_per_second(role, mix, sooner, engines) <= 1.01 * loose


@given(roles, mixes, targets, st.integers(1, 8), st.floats(1.1, 4))
@settings(max_examples=25, deadline=None)
def test_a_slower_engine_serves_no_more(
    role: str, mix: RequestMix, wanted: Targets, engines: int, factor: float
) -> None:
    slower = StretchedCosts(COSTS, prefill_factor=factor, decode_factor=factor)

    assert requests_per_second(role, mix, wanted, engines, slower) <= 1.01 * requests_per_second(
        role, mix, wanted, engines
    )


@pytest.mark.parametrize("role", sorted(POOLS))
def test_requests_twice_as_long_at_most_halve_the_capacity(role: str) -> None:
    long = replace(CHAT, prompt_tokens=2310, output_tokens=422)

    twice = requests_per_second(role, long, TARGETS, 4)

    assert 0 < twice < 0.55 * requests_per_second(role, CHAT, TARGETS, 4)


def test_a_smaller_context_than_the_means_suggest_raises_the_capacity() -> None:
    """With decode engines bound by their cache; what prefill engines need does not change."""
    long = RequestMix(1.0, prompt_tokens=15_000, output_tokens=1000)
    apart = replace(long, context_factor=0.25)

    assert requests_per_second("decode", apart, TARGETS, 4) > 2.5 * requests_per_second(
        "decode", long, TARGETS, 4
    )
    slow = Targets(ttft_seconds=5.0, itl_seconds=0.03)
    assert requests_per_second("prefill", apart, slow, 4) == requests_per_second(
        "prefill", long, slow, 4
    )


def test_a_larger_prefill_pool_reaches_a_higher_utilization() -> None:
    found = [prefill_capacity(COSTS, CHAT, TARGETS, engines) for engines in (1, 2, 4, 8)]

    used = [each.utilization for each in found if isinstance(each, PoolCapacity)]
    assert used == sorted(used)
    assert used[0] < 0.9 < used[-1] < 1


def test_the_floor_of_a_full_decode_step_is_about_the_step_of_one_request() -> None:
    def step_seconds(batch: float) -> float:
        return COSTS.step_seconds(0, 0, batch, batch * CHAT.context_tokens)

    most = max(batch for batch in range(1, 257) if step_seconds(batch) <= TARGETS.itl_seconds)
    floor = decode_pool(COSTS, CHAT, TARGETS).step_floor()
    assert floor == pytest.approx(step_seconds(1) / step_seconds(most), rel=0.1)

    # If one request alone is too slow, no engine is full.
    hopeless = decode_pool(COSTS, CHAT, replace(TARGETS, itl_seconds=1e-4))
    assert hopeless.step_floor() == 1.0


def test_a_slow_transfer_leaves_less_time_to_queue() -> None:
    soon, late = (
        prefill_capacity(COSTS, CHAT, TARGETS, 1, transfer_seconds=seconds)
        for seconds in (0.0, 0.3)
    )

    assert isinstance(soon, PoolCapacity)
    assert isinstance(late, PoolCapacity)
    assert late.requests_per_second < 0.9 * soon.requests_per_second


@pytest.mark.parametrize(
    ("role", "wanted", "bound"),
    [
        ("prefill", Targets(0.02, 0.01), "ttft"),
        ("decode", Targets(1.0, 0.002), "itl"),
        ("mixed", Targets(1.0, 0.002), "itl"),
        ("mixed", Targets(0.005, 1.0), "ttft"),
    ],
)
def test_a_target_that_one_request_alone_misses_gives_no_capacity(
    role: str, wanted: Targets, bound: str
) -> None:
    found = POOLS[role](COSTS, CHAT, wanted, 4)

    assert isinstance(found, PoolCapacity)
    assert (found.requests_per_second, found.bound) == (0.0, bound)


def test_the_limit_reached_first_is_named() -> None:
    small = replace(COSTS, shape=replace(COSTS.shape, max_num_seqs=16))
    tight = replace(COSTS, shape=replace(COSTS.shape, kv_tokens=20_000.0))

    bounds = [
        found.bound
        for costs in (COSTS, small, tight)
        if isinstance(found := decode_capacity(costs, CHAT, Targets(1.0, 0.012), 2), PoolCapacity)
    ]

    assert bounds == ["itl", "max_num_seqs", "kv"]


def test_all_invalid_arguments_are_reported_at_once() -> None:
    with pytest.raises(ValueError, match=r"transfer_seconds is -1.*engines is 0"):
        prefill_capacity(COSTS, CHAT, TARGETS, 0, transfer_seconds=-1.0)
    with pytest.raises(ValueError, match=r"requests_per_second is nan.*output_tokens is 0"):
        RequestMix(float("nan"), 100, 0)
    with pytest.raises(ValueError, match=r"ttft_seconds is 0.*attainment is 1.0"):
        Targets(0, 1, 1.0)


def test_the_largest_allowed_lengths_have_a_capacity() -> None:
    vast = RequestMix(1e300, 1e7, 1e7, 1e7, 1e4, 1e4, 1e4)

    for capacity in POOLS.values():
        found = capacity(COSTS, vast, TARGETS, 10**6)
        assert isinstance(found, PoolCapacity)
        assert 0 <= found.requests_per_second < 1


@pytest.mark.parametrize("role", sorted(POOLS))
def test_an_engine_whose_steps_hold_one_token_has_a_capacity(role: str) -> None:
    one = replace(COSTS, shape=replace(COSTS.shape, max_num_batched_tokens=1))

    found = POOLS[role](one, RequestMix(1.0, 10, 10), Targets(60.0, 1.0), 2)

    assert isinstance(found, PoolCapacity)
    assert found.requests_per_second > 0


def test_a_context_larger_than_the_cache_gives_no_capacity() -> None:
    small = replace(COSTS, shape=replace(COSTS.shape, kv_tokens=1000.0))

    for capacity in (decode_capacity, mixed_capacity):
        found = capacity(small, CHAT, TARGETS, 4)
        assert isinstance(found, PoolCapacity)
        assert (found.requests_per_second, found.bound) == (0.0, "kv")


@pytest.mark.parametrize("mix", [{"prompt_tokens": 1e8}, {"output_dispersion": 1e5}])
def test_lengths_and_dispersions_out_of_range_are_refused(mix: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not a number from"):
        replace(CHAT, **mix)
