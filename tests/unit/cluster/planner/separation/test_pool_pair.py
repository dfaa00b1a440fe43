"""The best split of GPUs, links between pools, and errors of single phases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.engine_costs import StretchedCosts
from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.phase_errors import (
    PhaseError,
    phase_errors,
    stretched,
)
from disagg_cluster.planner.separation.pools import Demand, PoolPair
from disagg_cluster.simulator.engine.hardware import H100, LLAMA_8B

COSTS = priced_costs(H100, LLAMA_8B, 1)


@given(
    st.floats(100, 8000), st.floats(20, 600), st.floats(0.5, 4), st.floats(0.01, 0.1),
    st.integers(5, 9), st.sampled_from([1e9, 1e10, 1e12]), st.sampled_from([1, 2, 4]),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_the_hill_climb_finds_the_best_split(
    prompt: float, output: float, ttft: float, itl: float, gpus: int, link: float, each: int
) -> None:
    demand = Demand(RequestMix(1.0, prompt, output), Targets(ttft, itl))
    pair = PoolPair(COSTS, priced_costs(H100, LLAMA_8B, each), demand, KvLink(link))

    best = pair.best(gpus)

    assert best is not None
    every = [
        pair.of(count, (gpus - count) // each).requests_per_second
        for count in range(1, gpus - each + 1)
    ]
    assert best.requests_per_second >= max(every) * 0.99


def test_two_engines_need_two_gpus() -> None:
    pair = PoolPair(COSTS, COSTS, Demand(RequestMix(1.0, 500, 100), Targets(1, 1)), KvLink(1e10))

    assert pair.best(1) is None


@pytest.mark.parametrize(
    ("bytes_per_second", "latency"), [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1e9, -0.1)]
)
def test_an_impossible_link_is_refused(bytes_per_second: float, latency: float) -> None:
    with pytest.raises(ValueError, match="not a"):
        KvLink(bytes_per_second, latency)


def test_the_time_that_a_prompt_adds_is_prefill() -> None:
    works = {"prefill": (512, 256, 0, 0), "decode": (0, 0, 32, 32_000)}
    mixed = (512, 256, 32, 32_000)
    slow_prompts = StretchedCosts(COSTS, prefill_factor=2.0)

    added = COSTS.step_seconds(*mixed) - COSTS.step_seconds(*works["decode"])

    assert slow_prompts.step_seconds(*works["prefill"]) == pytest.approx(
        2 * COSTS.step_seconds(*works["prefill"])
    )
    assert slow_prompts.step_seconds(*works["decode"]) == COSTS.step_seconds(*works["decode"])
    assert slow_prompts.step_seconds(*mixed) == pytest.approx(COSTS.step_seconds(*mixed) + added)


def test_engines_of_one_shape_share_their_errors() -> None:
    errors = phase_errors((COSTS, COSTS, priced_costs(H100, LLAMA_8B, 2)))

    assert [(error.gpus, error.decode) for error in errors] == [
        (1, False), (1, True), (2, False), (2, True),
    ]  # fmt: skip


def test_an_error_of_another_shape_leaves_an_engine_alone() -> None:
    error = PhaseError(H100.name, 2, decode=True, relative_error=0.1)

    assert stretched(COSTS, error, 1.1) is COSTS
