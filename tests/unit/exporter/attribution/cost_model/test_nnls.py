from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.nnls import solve, solve_each


def _normal(rows: list[list[float]], b: list[float]) -> tuple[list[list[float]], list[float]]:
    size = len(rows[0])
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    return gram, [
        sum(row[i] * value for row, value in zip(rows, b, strict=True)) for i in range(size)
    ]


def test_exact_data_give_their_coefficients_back() -> None:
    rows = [[1.0, 2.0], [1.0, 3.0], [1.0, 7.0]]

    assert solve(*_normal(rows, [5.0, 6.5, 12.5])) == pytest.approx((2.0, 1.5), rel=1e-6)


def test_a_negative_coefficient_is_set_to_zero_and_the_rest_refitted() -> None:
    rows = [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]

    assert solve(*_normal(rows, [3.0, 2.0, 1.0])) == pytest.approx((2.0, 0.0), abs=1e-6)


def test_an_all_zero_column_has_a_zero_coefficient() -> None:
    assert solve([[2.0, 0.0], [0.0, 0.0]], [4.0, 0.0]) == pytest.approx((2.0, 0.0))


def test_columns_of_very_different_scale_are_solved() -> None:
    rows = [[1.0, t, t * c] for t in (1e2, 3e3, 8e3) for c in (1e1, 1e4, 1e5)]
    truth = (5e-3, 2e-5, 1e-11)
    b = [sum(x * y for x, y in zip(row, truth, strict=True)) for row in rows]

    assert solve(*_normal(rows, b)) == pytest.approx(truth, rel=1e-4)


def test_coefficients_of_proportional_columns_sum_to_the_slope() -> None:
    rows = [[1.0, 1.0], [2.0, 2.0]]

    assert sum(solve(*_normal(rows, [3.0, 6.0]))) == pytest.approx(3.0, rel=1e-6)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(5, 30))
def test_the_solution_fits_as_well_as_scipys(seed: int, columns: int, count: int) -> None:
    """As good a fit as SciPy's on random systems, and never below 0."""
    optimize = pytest.importorskip("scipy.optimize")
    rng = random.Random(seed)
    rows = [[rng.gauss(0, 10.0**j) for j in range(columns)] for _ in range(count)]
    b = [rng.gauss(0, 1) for _ in range(count)]

    ours = solve(*_normal(rows, b))

    def distance(x: tuple[float, ...]) -> float:
        return sum(
            (sum(a * c for a, c in zip(row, x, strict=True)) - value) ** 2
            for row, value in zip(rows, b, strict=True)
        )

    theirs, _ = optimize.nnls(rows, b)
    assert min(ours) >= 0
    assert distance(ours) <= distance(tuple(theirs)) * (1 + 1e-6) + 1e-9


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 3))
def test_systems_solved_in_a_batch_match_those_solved_one_by_one(
    seed: int, columns: int, unseen: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(13, 30, columns)) * 10.0 ** np.arange(columns)
    rows[:, :, :unseen] = 0
    b = rng.normal(size=(13, 30))
    grams, moments = np.einsum("pri,prj->pij", rows, rows), np.einsum("pri,pr->pi", rows, b)

    together = solve_each(grams, moments)

    apart = np.array([solve(*each) for each in zip(grams, moments, strict=True)])
    assert together == pytest.approx(apart, rel=1e-6, abs=1e-9)
