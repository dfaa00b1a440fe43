from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.simulator.prices.grid import Grid

SQUARE = Grid({(x, y): 2 + x * y for x, y in product((1.0, 4.0, 8.0), (0.0, 16.0, 64.0))})
CURVE = Grid({(1.0,): 10.0, (2.0,): 12.0, (4.0,): 20.0})


@given(st.floats(1, 8), st.floats(0, 64))
def test_a_product_is_interpolated_exactly(x: float, y: float) -> None:
    assert SQUARE.at(x, y) == pytest.approx(2 + x * y)


@given(st.floats(1, 1e9), st.floats(0, 1e9))
def test_a_product_is_extrapolated_exactly(x: float, y: float) -> None:
    assert SQUARE.at(x, y) == pytest.approx(2 + x * y)


def test_below_the_first_point_it_is_constant() -> None:
    assert [CURVE.at(0.0), CURVE.at(1.0), CURVE.at(1.5)] == [10.0, 10.0, 11.0]


def test_beyond_the_last_point_it_continues_the_upper_halfs_slope() -> None:
    assert [CURVE.at(3.0), CURVE.at(4.0), CURVE.at(8.0)] == [16.0, 20.0, 36.0]


def test_the_last_two_points_do_not_determine_the_slope() -> None:
    """Constant for the last 16 tokens, as every kernel's time is."""
    stairs = Grid({(1024.0,): 40.0, (1025.0,): 46.0, (2032.0,): 76.0, (2048.0,): 76.0})

    assert stairs.at(4096.0) == pytest.approx(76.0 + 2 * 36.0)


def test_a_grid_point_without_a_value_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match=r"no value at \(1.0, 2.0\), and 0 more"):
        Grid({(1.0, 1.0): 1.0, (2.0, 1.0): 1.0, (2.0, 2.0): 1.0})
