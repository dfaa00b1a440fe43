"""Uses of a device's time some tenths of a second earlier (accounting A10)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.devices.use_trail import LONGEST_LAG_NS, UseTrail
from disagg_exporter.model import Cell, Role, Use

PREFILL, DECODE = (Cell(Role.MIXED, use) for use in (Use.PREFILL, Use.DECODE))
TENTH = 100_000_000


def test_uses_are_shifted_by_the_lag() -> None:
    """A second of prefill, then decode; a counter that lags by 0.25 s shows 2.5 intervals of it."""
    trail, tenths = UseTrail(), np.full(10, float(TENTH))
    trail.follow(tenths, {PREFILL: tenths})
    trail.follow(tenths, {DECODE: tenths})

    found = trail.stretched(10, TENTH * 5 // 2, TENTH * 5 // 2)

    assert found[PREFILL] / TENTH == pytest.approx([1, 1, 0.5, 0, 0, 0, 0, 0, 0, 0])
    assert found[PREFILL] + found[DECODE] == pytest.approx(tenths)


def test_uses_without_known_history_are_not_shifted() -> None:
    trail, tenths = UseTrail(), np.full(3, float(TENTH))
    trail.follow(tenths, {DECODE: tenths})

    assert trail.reaches(3, TENTH).tolist() == [False, True, True]
    assert trail.stretched(3, TENTH, TENTH)[DECODE] == pytest.approx(tenths)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 10**15), st.floats(0, 1)), min_size=1, max_size=5),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, LONGEST_LAG_NS),
)
def test_every_interval_has_uses_for_any_lag(
    commits: list[list[tuple[int, float]]], lag_ns: int
) -> None:
    """Gaps of days among nanoseconds, too: an interval without a use would lose its joules."""
    trail = UseTrail()
    for intervals in commits:
        lengths = np.array([float(length) for length, _ in intervals])
        part = np.array([share for _, share in intervals])
        trail.follow(lengths, {PREFILL: lengths * part, DECODE: lengths * (1 - part)})
        found = trail.stretched(len(intervals), lag_ns, lag_ns)

        assert all((amounts >= 0).all() for amounts in found.values())
        assert (sum(found.values()) > 0).all()
