from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.forecast.stacking import stacking_weights


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 12))
def test_weights_are_shares(seed: int, horizons: int, experts: int) -> None:
    errors = np.random.default_rng(seed).normal(size=(horizons, 50, experts))
    weights = stacking_weights(errors, np.ones((horizons, 50)))

    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)


def test_uncorrelated_experts_are_weighted_by_inverse_variance() -> None:
    """For independent errors with deviations 1 and 2 the best shares are 4/5 and 1/5."""
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(1, 20_000, 2)) * np.array([0.3, 0.6])
    weights = stacking_weights(errors, np.ones((1, 20_000)))[0]

    np.testing.assert_allclose(weights, [0.8, 0.2], atol=0.03)


def test_an_exact_expert_gets_nearly_all_weight() -> None:
    errors = np.random.default_rng(0).normal(size=(2, 200, 3))
    errors[..., 1] = 0.0

    assert (stacking_weights(errors, np.ones((2, 200)))[:, 1] > 0.95).all()
