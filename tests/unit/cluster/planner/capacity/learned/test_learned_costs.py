from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from disagg_cluster.planner.capacity.decode_pool import decode_capacity
from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.learned.learned_costs import (
    ALONE_ERROR,
    LearnedCosts,
    LearnedSteps,
    learned_costs,
)
from disagg_cluster.planner.capacity.mixed_pool import mixed_capacity
from disagg_cluster.planner.capacity.pool_capacity import PoolCapacity, UndecidedCapacity
from disagg_cluster.planner.capacity.prefill_pool import prefill_capacity
from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.engine.hardware import H100, LLAMA_8B

SHAPE = EngineShape("NVIDIA H100 80GB HBM3", 1, 400_000.0, None, 8192, 256)
PREFILL = LearnedSteps({512: 0.012, 8192: 0.18}, {}, {})
DECODE = LearnedSteps({}, {1: 0.007, 64: 0.012, 256: 0.02}, {}, 0.006, 1000.0)
BOTH = replace(
    DECODE, prefill=PREFILL.prefill, mixed_ratios={(256.0, 16.0): 1.1, (1024.0, 64.0): 1.3}
)
CHAT = RequestMix(1.0, 800, 200)
TARGETS = Targets(0.5, 0.03)


def learned(*engines: LearnedSteps) -> LearnedCosts:
    found = learned_costs(engines, SHAPE)
    assert isinstance(found, LearnedCosts)
    return found


def test_a_mixed_step_takes_its_halves_times_the_observed_ratio() -> None:
    costs = learned(BOTH)

    assert costs.step_seconds(512, 256, 0, 0) == pytest.approx(0.012)
    assert costs.step_seconds(0, 0, 64, 64_000) == pytest.approx(0.012)
    apart = 0.012 + 0.012 - 0.006
    assert costs.step_seconds(512, 256, 64, 64_000) == pytest.approx(1.3 * apart)


def test_a_mixed_step_takes_no_less_than_each_of_its_halves() -> None:
    """Reading for 64 requests hides behind computing 512 tokens, not all of 8192."""
    costs = learned(replace(BOTH, mixed_ratios={(512.0, 64.0): 0.7}))

    assert costs.step_seconds(512, 256, 64, 64_000) == pytest.approx(0.7 * 0.018)
    assert costs.step_seconds(8192, 4096, 64, 64_000) == pytest.approx(0.18)


def test_longer_contexts_prolong_the_batch_part_and_shorter_ones_save_nothing() -> None:
    costs = learned(DECODE)

    usual, longer, shorter = (costs.step_seconds(0, 0, 64, 64 * n) for n in (1000, 2000, 500))
    assert longer == pytest.approx(usual + (usual - 0.006))
    assert shorter == usual
    with pytest.raises(UnseenStepError, match="1000 KV tokens lately"):
        costs.step_seconds(0, 0, 64, 64 * 5000)


def test_costs_of_one_phase_suffice_for_the_capacity_of_its_role() -> None:
    prefill, decode = learned(PREFILL), learned(DECODE)

    assert isinstance(prefill_capacity(prefill, CHAT, TARGETS, 2), PoolCapacity)
    assert isinstance(decode_capacity(decode, CHAT, TARGETS, 2), PoolCapacity)
    for found in (
        decode_capacity(prefill, CHAT, TARGETS, 2),
        prefill_capacity(decode, CHAT, TARGETS, 2),
        mixed_capacity(decode, CHAT, TARGETS, 2),
    ):
        assert isinstance(found, UndecidedCapacity)
        assert "was seen" in found.reason


def test_engines_that_report_nothing_are_undecided() -> None:
    assert learned_costs([LearnedSteps({}, {}, {})], SHAPE) == UndecidedCapacity(
        "its only engine does not report its step times"
    )
    assert isinstance(learned_costs([], SHAPE), UndecidedCapacity)


def test_prompt_steps_are_limited_to_the_largest_observed() -> None:
    seen = learned(replace(PREFILL, prefill={256: 0.008, 2000: 0.05}))

    assert seen.shape.max_num_batched_tokens == 2000


@pytest.mark.parametrize("capacity", [decode_capacity, mixed_capacity])
def test_a_batch_far_beyond_the_observed_ones_is_not_promised(
    capacity: Callable[..., PoolCapacity | UndecidedCapacity],
) -> None:
    idle = learned(replace(BOTH, decode={1: 0.007, 8: 0.0075}))

    found = capacity(idle, CHAT, TARGETS, 1)

    assert isinstance(found, PoolCapacity)
    assert found.bound == "unseen"
    assert found.batch < 16


def test_the_error_combines_the_spread_of_engines_and_the_error_of_each() -> None:
    slower = replace(PREFILL, prefill={n: 1.2 * s for n, s in PREFILL.prefill.items()})

    assert learned(PREFILL).relative_error == ALONE_ERROR
    assert learned(PREFILL, PREFILL).relative_error == 0.0
    assert learned(PREFILL, slower).relative_error == pytest.approx(0.135, abs=0.002)
    unsure = replace(PREFILL, error_ratio=0.3)
    assert learned(unsure, unsure).relative_error == pytest.approx(0.3)


def test_costs_learned_from_all_steps_give_the_capacity_of_the_true_costs() -> None:
    true = priced_costs(H100, LLAMA_8B, 1)
    sizes, batches = (64, 256, 512, 1024, 2048, 4096, 8192), (1, 8, 32, 64, 128, 256)
    context = CHAT.context_tokens
    steps = LearnedSteps(
        {n: true.step_seconds(n, min(n / 2, CHAT.attended_tokens), 0, 0) for n in sizes},
        {n: true.step_seconds(0, 0, n, n * context) for n in batches},
        {},
        true.step_seconds(0, 0, 0, 0),
        context,
    )
    costs = learned(steps)

    for capacity in (prefill_capacity, decode_capacity, mixed_capacity):
        known, real = (capacity(each, CHAT, TARGETS, 2) for each in (costs, true))
        assert isinstance(known, PoolCapacity)
        assert isinstance(real, PoolCapacity)
        assert known.requests_per_second == pytest.approx(real.requests_per_second, rel=0.1)
