"""How busy time divides between the phases by token counts alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.pages.prefill_shares import Counts, PhaseShares
from disagg_exporter.attribution.pages.window_steps import BUCKETS
from disagg_exporter.model import Role, Split

PREFILL_COST, DECODE_COST = 50e-6, 2e-3
COUNTS = st.integers(0, 10**9)
GAPS = st.just(()) | st.tuples(*[st.floats(0, 1e9)] * BUCKETS)


def _trained(stretches: int = 400) -> PhaseShares:
    shares, dice = PhaseShares(), random.Random(7)
    for _ in range(stretches):
        prefill, decode = dice.randrange(0, 8000), dice.randrange(0, 250)
        busy = (PREFILL_COST * prefill + DECODE_COST * decode) * dice.uniform(0.95, 1.05)
        shares.learn(Counts(prefill, decode), min(busy, 1.0), 1.0)
    return shares


def test_tokens_divide_until_the_costs_are_known() -> None:
    shares = PhaseShares()
    assert shares.share(Role.MIXED, Counts(300, 100), 1.0) == 0.75
    assert shares.split is Split.TOKENS
    assert shares.residual_ratio is None


def test_learned_costs_divide_by_seconds() -> None:
    shares = _trained()
    assert shares.split is Split.MODEL
    truth = PREFILL_COST * 4000 / (PREFILL_COST * 4000 + DECODE_COST * 100)
    assert shares.share(Role.MIXED, Counts(4000, 100), 0.4) == pytest.approx(truth, abs=0.05)


def test_the_fixed_cost_of_steps_without_a_prompt_is_decode() -> None:
    """A step reads the weights in 10 ms: with few prompts that is hardly prefill's doing."""
    shares, dice = PhaseShares(), random.Random(7)
    for _ in range(400):
        steps, prompts = dice.randrange(40, 80), dice.randrange(0, 8)
        counts = Counts(1000 * prompts, 30 * steps, steps, prompts)
        shares.learn(counts, 0.01 * steps + PREFILL_COST * 1000 * prompts, 1.0)

    few = shares.share(Role.MIXED, Counts(4000, 1800, 60, 4), 0.8)
    none = shares.share(Role.MIXED, Counts(0, 1800, 60), 0.6)

    assert shares.split is Split.MODEL
    assert 0.2 / 0.8 < few < (0.2 + 4 * 0.01) / 0.8
    assert none == 0.0


@pytest.mark.parametrize(("prompts", "stretches"), [(8, 40), (4, 20), (0, 2)])
def test_stretches_to_learn_from_are_shorter_with_more_prompts(
    prompts: int, stretches: int
) -> None:
    shares = PhaseShares()
    for _ in range(40):
        shares.learn(Counts(200 * prompts, 100, 20, prompts), 0.5, 1.0)

    assert shares.stretches == stretches


def test_costs_that_explain_nothing_are_not_trusted() -> None:
    shares, dice = PhaseShares(), random.Random(7)
    for _ in range(400):
        counts = Counts(dice.randrange(8000), dice.randrange(250))
        shares.learn(counts, dice.uniform(0.01, 1.0) ** 4, 1.0)
    assert shares.split is Split.TOKENS


@pytest.mark.parametrize(
    ("role", "share"), [(Role.MIXED, 1.0), (Role.PREFILL, 1.0), (Role.DECODE, 0.0)]
)
def test_busy_time_without_tokens_is_prefill_unless_the_role_is_decode(
    role: Role, share: float
) -> None:
    assert PhaseShares().share(role, Counts(), 0.7) == share


def test_a_long_prompt_is_prefill_before_it_is_counted() -> None:
    """Its tokens are counted when it ends; until then the engine is busy with nothing else."""
    shares = _trained()
    assert shares.share(Role.MIXED, Counts(0, 50), 1.0) == pytest.approx(0.88, abs=0.02)
    assert shares.share(Role.DECODE, Counts(0, 50), 1.0) < 0.01


def test_busy_time_slightly_above_prediction_is_not_prefill() -> None:
    shares = _trained()
    assert shares.share(Role.MIXED, Counts(0, 50), 0.11) < 0.01


def test_costs_no_longer_trusted_are_replaced_by_token_counts() -> None:
    shares, dice = _trained(), random.Random(7)
    for _ in range(60):
        shares.learn(Counts(dice.randrange(8000), dice.randrange(250)), dice.random() ** 4, 20.0)
    assert shares.split is Split.TOKENS
    assert shares.share(Role.MIXED, Counts(300, 100), 1.0) == 0.75


def test_all_busy_time_of_a_prefill_only_engine_is_prefill() -> None:
    """A prefill engine writes one token for each prompt, and that is the prompt's own."""
    shares, dice = PhaseShares(), random.Random(7)
    for _ in range(100):
        prompts = dice.randrange(1, 20)
        shares.learn(Counts(500 * prompts, 0, prompts, prompts), 0.03 * prompts, 1.0)
    assert shares.split is Split.MODEL
    assert shares.share(Role.MIXED, Counts(5000, 0, 10, 10), 0.3) == 1.0


def test_stretches_lengthen_as_an_engine_is_observed_longer() -> None:
    """A stretch lasts longer the longer the engine is known: a second first, ten at last."""
    shares = PhaseShares()
    for _ in range(3000):
        shares.learn(Counts(800, 100, 20, 8), 0.5, 1.0)
    assert 3000 / 10 < shares.stretches < 3000 / 4


def test_a_tiny_prompt_count_with_many_tokens_keeps_the_share_valid() -> None:
    shares = PhaseShares()
    steady, none = Counts(0, 0, 1.0, 8.0), Counts(0, 0)
    odd = Counts(12_159, 1, 0.0, 6.8e-305)
    for counts in (*[steady] * 4, none, Counts(0, 0, 1.0, 0.0), odd, none):
        shares.learn(counts, 1.0, 10.0)
        assert 0.0 <= shares.share(Role.MIXED, counts, 1.0) <= 1.0


@given(
    st.lists(
        st.tuples(
            st.builds(Counts, COUNTS, COUNTS, st.floats(0, 1e9), st.floats(0, 1e9), GAPS),
            st.floats(0, 1e6),
            st.sampled_from(Role),
        ),
        max_size=80,
    )
)
def test_the_share_is_between_0_and_1_for_any_counters(
    told: list[tuple[Counts, float, Role]],
) -> None:
    shares = PhaseShares()
    for counts, busy, role in told:
        shares.learn(counts, busy, 10.0)
        assert 0.0 <= shares.share(role, counts, busy) <= 1.0


def _in_pieces(shares: PhaseShares, stretches: int = 300) -> float:
    """Teach prompts of 3,000 tokens in pieces, without times between tokens; return the error."""
    reading, request, token = 0.02, 1e-4, 1e-4
    dice, said, true = random.Random(5), 0.0, 0.0
    for number in range(stretches):
        prompts, requests = dice.randrange(0, 33), dice.randrange(4, 60)
        decode, prefill = reading + request * requests, token * (512 - requests)
        both = token * 512
        part = 0.5 + (prefill - decode) / (2 * (both - reading))
        plain, mixed = dice.randrange(40, 400), 3000 * prompts / (512 - requests)
        busy = (plain * decode + mixed * both) * dice.uniform(0.98, 1.02)
        steps = plain + mixed
        counts = Counts(3000 * prompts, round(requests * steps), steps, prompts)
        shares.learn(counts, busy, 10.0)
        if number >= stretches // 2:
            said += busy * shares.share(Role.MIXED, counts, busy)
            true += mixed * both * part
    return said / true - 1


def test_a_known_step_token_limit_corrects_the_share_of_chunked_prompts() -> None:
    shares = PhaseShares()
    shares.limit_steps(512)

    assert abs(_in_pieces(shares)) < 0.1
    assert abs(_in_pieces(PhaseShares())) > 0.2


def test_a_step_token_limit_known_later_applies_from_then_on() -> None:
    shares = PhaseShares()
    _in_pieces(shares)
    known = []
    for step_tokens in (None, 512, 8192):
        shares.limit_steps(step_tokens)
        known.append(shares.cuts_prompts)

    assert known == [False, True, False]
