"""How busy time divides between the phases by token counts alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import Role, Split
from disagg_exporter.sources.shares import PhaseShares

PREFILL_COST, DECODE_COST = 50e-6, 2e-3


def _trained(stretches: int = 400) -> PhaseShares:
    shares, dice = PhaseShares(), random.Random(7)
    for _ in range(stretches):
        prefill, decode = dice.randrange(0, 8000), dice.randrange(0, 250)
        busy = (PREFILL_COST * prefill + DECODE_COST * decode) * dice.uniform(0.95, 1.05)
        shares.learn(prefill, decode, min(busy, 1.0), 1.0)
    return shares


def test_tokens_divide_until_the_costs_are_known() -> None:
    shares = PhaseShares()
    assert shares.share(Role.MIXED, 300, 100, 1.0) == 0.75
    assert shares.split is Split.TOKENS
    assert shares.residual_ratio is None


def test_learned_costs_divide_by_seconds() -> None:
    shares = _trained()
    assert shares.split is Split.MODEL
    truth = PREFILL_COST * 4000 / (PREFILL_COST * 4000 + DECODE_COST * 100)
    assert shares.share(Role.MIXED, 4000, 100, 0.4) == pytest.approx(truth, abs=0.05)


def test_costs_that_explain_nothing_are_not_trusted() -> None:
    shares, dice = PhaseShares(), random.Random(7)
    for _ in range(400):
        shares.learn(dice.randrange(8000), dice.randrange(250), dice.uniform(0.01, 1.0) ** 4, 1.0)
    assert shares.split is Split.TOKENS


@pytest.mark.parametrize(
    ("role", "share"), [(Role.MIXED, 1.0), (Role.PREFILL, 1.0), (Role.DECODE, 0.0)]
)
def test_busy_without_a_token_is_a_prompt_unless_the_role_says_otherwise(
    role: Role, share: float
) -> None:
    assert PhaseShares().share(role, 0, 0, 0.7) == share


def test_prefill_that_was_counted_at_its_end_is_carried_into_what_follows() -> None:
    shares = _trained()
    first = shares.share(Role.MIXED, 40_000, 50, 1.0)
    second = shares.share(Role.MIXED, 0, 50, 1.0)
    assert first == pytest.approx(0.9, abs=0.02)
    assert second == pytest.approx(0.9, abs=0.02)
    assert shares.share(Role.MIXED, 0, 50, 0.1) < 1.0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0, 1e6), st.sampled_from(Role)
        ),
        max_size=80,
    )
)
def test_a_share_is_a_share_whatever_the_counters_say(
    told: list[tuple[int, int, float, Role]],
) -> None:
    shares = PhaseShares()
    for prefill, decode, busy, role in told:
        shares.learn(prefill, decode, busy, 10.0)
        assert 0.0 <= shares.share(role, prefill, decode, busy) <= 1.0
