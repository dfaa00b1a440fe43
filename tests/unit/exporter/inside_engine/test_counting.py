"""The running totals: every computed token in one phase, every step in one kind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.counting import (
    DECODE_TOKENS,
    DROPS,
    ELAPSED,
    NOTHING_YET,
    PREFILL_TOKENS,
    STEPS,
    Facts,
    count,
)

counts = st.integers(0, 2**20)
facts = st.builds(
    Facts,
    elapsed_ns=st.integers(0, 10**12),
    context_requests=counts,
    context_tokens=counts,
    generation_requests=counts,
    generation_tokens=counts,
    encoder_inputs=st.integers(0, 3),
    computed_tokens=counts,
    cached_tokens=counts,
    external_tokens=counts,
)


def totals_of(*steps: Facts, dummy: bool = False) -> list[int]:
    totals = list(NOTHING_YET)
    for step in steps:
        count(totals, step, dummy=dummy)
    return totals


def test_the_recompute_of_a_transferred_prompt_is_decode() -> None:
    """One token per request, nothing computed of the prompt, all of it received (A4)."""
    received = Facts(context_requests=2, context_tokens=2, external_tokens=1000)

    totals = totals_of(received)

    assert totals[STEPS : STEPS + 4] == [0, 1, 0, 0]
    assert (totals[PREFILL_TOKENS], totals[DECODE_TOKENS]) == (0, 2)


def test_a_recompute_beside_generation_is_decode_too() -> None:
    both = Facts(context_requests=1, context_tokens=1, generation_tokens=5, external_tokens=64)

    totals = totals_of(both)

    assert totals[STEPS : STEPS + 4] == [0, 1, 0, 0]
    assert (totals[PREFILL_TOKENS], totals[DECODE_TOKENS]) == (0, 6)


def test_a_partly_received_prompt_is_prefill_of_the_rest() -> None:
    partly = Facts(
        context_requests=1,
        context_tokens=87,
        computed_tokens=87,
        external_tokens=64,
        cached_tokens=9,
    )

    totals = totals_of(partly)

    assert totals[STEPS : STEPS + 4] == [1, 0, 0, 0]
    assert (totals[PREFILL_TOKENS], totals[DECODE_TOKENS]) == (87, 0)


def test_a_chunk_that_ends_no_prompt_is_prefill() -> None:
    totals = totals_of(Facts(context_requests=1, context_tokens=1))

    assert (totals[PREFILL_TOKENS], totals[DECODE_TOKENS]) == (1, 0)


def test_a_mixed_step_puts_its_tokens_in_both_phases() -> None:
    totals = totals_of(Facts(context_tokens=100, generation_tokens=8, computed_tokens=100))

    assert totals[STEPS : STEPS + 4] == [0, 0, 1, 0]
    assert (totals[PREFILL_TOKENS], totals[DECODE_TOKENS]) == (100, 8)


def test_encoder_work_is_a_context_step() -> None:
    assert totals_of(Facts(encoder_inputs=1))[STEPS : STEPS + 4] == [1, 0, 0, 0]


@given(facts, st.booleans(), st.booleans())
def test_both_ends_agree_on_a_steps_kind(step: Facts, context_free: bool, dummy: bool) -> None:
    if context_free:
        step = step._replace(context_tokens=0, encoder_inputs=0)
    agreed = wire.step_kind(
        context_requests=step.context_requests,
        context_tokens=step.context_tokens,
        generation_tokens=step.generation_tokens,
        computed_tokens=step.computed_tokens,
        external_tokens=step.external_tokens,
        encoder_inputs=step.encoder_inputs,
        dummy=dummy,
    )

    assert totals_of(step, dummy=dummy)[STEPS + agreed] == 1


@given(st.lists(facts, max_size=20))
def test_no_step_second_or_computed_token_is_lost_or_counted_twice(steps: list[Facts]) -> None:
    totals = totals_of(*steps)

    assert sum(totals[STEPS : STEPS + 4]) == len(steps)
    assert sum(totals[ELAPSED : ELAPSED + 4]) == sum(step.elapsed_ns for step in steps)
    computed = sum(step.context_tokens + step.generation_tokens for step in steps)
    assert totals[PREFILL_TOKENS] + totals[DECODE_TOKENS] == computed
    assert totals[DROPS] == 0


@given(facts)
def test_a_dummy_step_is_time_without_tokens(step: Facts) -> None:
    totals = totals_of(step, dummy=True)

    assert totals[STEPS : STEPS + 4] == [0, 0, 0, 1]
    assert totals[ELAPSED + 3] == step.elapsed_ns
    assert (totals[PREFILL_TOKENS], totals[DECODE_TOKENS]) == (0, 0)
