from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from disagg_cluster.planner.forecast.bands import student_widening
from disagg_cluster.planner.forecast.quantile_regression import quantile_regression


def test_quantiles_match_linear_programming() -> None:
    """Within 2 % of the minimal loss: q·u + (1 − q)·v with Xb + u − v = y and u, v >= 0."""
    rng = np.random.default_rng(0)
    count, quantile = 400, 0.9
    x = np.column_stack([np.ones(count), rng.uniform(0, 2, count)])
    y = 1.0 + 0.5 * x[:, 1] + x[:, 1] * rng.normal(0, 0.5, count)
    exact = linprog(
        np.concatenate([np.zeros(2), np.full(count, quantile), np.full(count, 1 - quantile)]),
        A_eq=np.hstack([x, np.eye(count), -np.eye(count)]),
        b_eq=y,
        bounds=[(None, None)] * 2 + [(0, None)] * 2 * count,
    ).x[:2]

    begin = np.array([[[np.quantile(y, quantile), 0.0]]])
    found = quantile_regression(
        x[None], y[None], np.ones((1, count)), np.array([quantile]), begin, 1e-6
    )[0, 0]

    def loss(coefficients: NDArray[np.float64]) -> float:
        missed = y - x @ coefficients
        return float(np.maximum(quantile * missed, (quantile - 1) * missed).mean())

    assert loss(exact) <= loss(found) <= 1.02 * loss(exact)


def test_a_sample_without_weight_does_not_count() -> None:
    x = np.ones((1, 101, 1))
    y = np.concatenate([np.arange(100.0), [1e6]])[None]
    weights = np.concatenate([np.ones(100), [0.0]])[None]

    prior = np.full((1, 1, 1), 50.0)
    found = quantile_regression(x, y, weights, np.array([0.5]), prior, 1e-6)

    assert abs(float(found[0, 0, 0]) - 49.5) < 1.0


def test_few_errors_widen_bands_by_students_t_quantiles() -> None:
    """Student's 95 % quantile with 10 degrees of freedom is 1.812, the normal one 1.645."""
    widening = student_widening(np.array([0.05, 0.95]), np.array([10.0, 1e9]))

    np.testing.assert_allclose(widening[0], 1.812 / 1.645, atol=0.015)
    np.testing.assert_allclose(widening[1], 1.0, atol=1e-6)
