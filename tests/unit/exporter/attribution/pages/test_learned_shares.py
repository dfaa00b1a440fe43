"""What is saved of the costs of an engine that reports sums only."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.attribution.pages.prefill_shares import Counts, LearnedShares, PhaseShares
from disagg_exporter.model import Role

COUNTS = st.builds(
    Counts,
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.integers(1, 200).map(float),
    st.integers(0, 20).map(float),
    st.just(()),
)
STRETCHES = st.lists(st.tuples(COUNTS, st.floats(0.02, 1.0)), min_size=1, max_size=30)


@settings(max_examples=15, deadline=None)
@given(STRETCHES, STRETCHES)
def test_restored_costs_behave_like_the_saved_ones(
    before: list[tuple[Counts, float]], later: list[tuple[Counts, float]]
) -> None:
    shares = PhaseShares()
    for counts, busy in before:
        shares.learn(counts, busy, 21.0)
    saved = shares.save()
    restored = PhaseShares.restored(saved)

    for counts, busy in later if saved else ():
        assert restored.share(Role.MIXED, counts, busy) == shares.share(Role.MIXED, counts, busy)
        for each in (shares, restored):
            each.learn(counts, busy, 21.0)
    assert (restored.split, restored.residual_ratio) == (shares.split, shares.residual_ratio) or (
        saved is None
    )
    assert saved is None or restored.save() == shares.save()


def test_nothing_learned_is_nothing_to_save() -> None:
    assert PhaseShares().save() is None
    assert PhaseShares.restored(None).stretches == 0


KNOWN = LearnedShares(
    stretches=1,
    rows=((1.0, 1.0, 5.0, 5.0, 0.0, 0.5, 1.0),),
    pending=(0.0,) * 7,
    costs=(0.1, 0.1, 0.1),
    tokens_per_second=0.0,
    first_slow=0,
    next_fit=6,
    errors=(0.1,),
    seconds_seen=1.0,
)


def test_saved_sums_with_other_buckets_are_dropped() -> None:
    assert PhaseShares.restored(KNOWN).stretches == 0


@pytest.mark.parametrize(
    "change",
    [
        {"rows": ((1.0, 1.0),)},
        {"rows": ((1.0, 1e-309, 5.0, 5.0, 0.0, 0.5, 1.0),)},
        {"rows": ((0.0, 1.0, 5.0, 5.0, 0.0, 0.5, 1.0),)},
        {"rows": ((1.0, 1.0, math.inf, 5.0, 0.0, 0.5, 1.0),)},
        {"rows": ((1.0, 1.0, 5.0, 5.0, 0.0, 0.0, 1.0),)},
        {"rows": KNOWN.rows * 241},
        {"pending": (math.nan,) * 7},
        {"costs": (0.1,)},
        {"costs": (0.1, -0.1, 0.1)},
        {"errors": (0.1,) * 25},
        {"first_slow": -1},
        {"next_fit": 10**9},
        {"stretches": 0},
    ],
    ids=str,
)
def test_invalid_saved_costs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        replace(KNOWN, **change)  # type: ignore[arg-type]
