from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.timelines.finalization import pack
from support.plain_timeline import plain_pack

SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=30).map(
    lambda spans: sorted(spans, key=lambda span: span[0])
)


def _placed(limits: list[int], lengths: list[int], floor: int) -> list[tuple[int, int, int]]:
    """Start, end and overflow of each span."""
    columns = (column.tolist() for column in pack(limits, lengths, floor))
    return list(zip(*columns, strict=True))


def test_spans_that_fit_end_at_their_limit() -> None:
    assert _placed([10, 20], [5, 5], 0) == [(5, 10, 0), (15, 20, 0)]


def test_a_burst_is_pushed_back_in_order() -> None:
    assert _placed([20, 20], [5, 5], 0) == [(10, 15, 0), (15, 20, 0)]


def test_a_span_without_room_above_the_floor_overflows() -> None:
    assert _placed([20, 20], [8, 8], 8) == [(8, 12, 4), (12, 20, 0)]


def test_a_record_from_below_the_floor_overflows_whole() -> None:
    assert _placed([5], [3], 8) == [(8, 8, 3)]


@given(SPANS, st.integers(0, 1000))
def test_packing_keeps_order_limits_floor_and_every_nanosecond(
    spans: list[tuple[int, int]], floor: int
) -> None:
    """For any spans: no overlap, nothing below the floor or after its limit, nothing lost."""
    limits, lengths = [s[0] for s in spans], [s[1] for s in spans]

    placed = _placed(limits, lengths, floor)

    for limit, length, (start, end, overflow) in zip(limits, lengths, placed, strict=True):
        assert floor <= start <= end <= max(limit, floor)
        assert end - start + overflow == length
    for before, after in itertools.pairwise(placed):
        assert before[1] <= after[0]
    assert placed == plain_pack(limits, lengths, floor)
