from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.packing import Placed, pack

SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=30).map(
    lambda spans: sorted(spans, key=lambda span: span[0])
)


def test_spans_that_fit_end_at_their_limit() -> None:
    assert pack([10, 20], [5, 5], 0) == [Placed(5, 10, 0), Placed(15, 20, 0)]


def test_a_burst_is_pushed_back_in_order() -> None:
    assert pack([20, 20], [5, 5], 0) == [Placed(10, 15, 0), Placed(15, 20, 0)]


def test_what_finds_no_room_above_the_floor_overflows() -> None:
    assert pack([20, 20], [8, 8], 8) == [Placed(8, 12, 4), Placed(12, 20, 0)]


def test_a_record_from_below_the_floor_overflows_whole() -> None:
    assert pack([5], [3], 8) == [Placed(8, 8, 3)]


@given(SPANS, st.integers(0, 1000))
def test_packing_keeps_order_limits_floor_and_every_nanosecond(
    spans: list[tuple[int, int]], floor: int
) -> None:
    """Whatever comes in: no overlap, nothing below the floor or after its limit, nothing lost."""
    limits, lengths = [s[0] for s in spans], [s[1] for s in spans]

    placed = pack(limits, lengths, floor)

    for limit, length, place in zip(limits, lengths, placed, strict=True):
        assert floor <= place.start_ns <= place.end_ns <= max(limit, floor)
        assert place.end_ns - place.start_ns + place.overflow_ns == length
    for before, after in itertools.pairwise(placed):
        assert before.end_ns <= after.start_ns
