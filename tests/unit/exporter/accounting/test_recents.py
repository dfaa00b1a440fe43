from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.recents import Recents
from disagg_exporter.accounting.rules import SECOND_NS
from disagg_exporter.model import Phase

STEPS = st.lists(st.tuples(st.integers(0, SECOND_NS), st.integers(0, 3 * SECOND_NS)), min_size=1)


@given(STEPS, st.integers(1, 5))
def test_whoever_looks_back_two_seconds_sees_everything(
    steps: list[tuple[int, int]], at_once: int
) -> None:
    """Whatever was forgotten in between, one by one or some at once."""
    recents, t_ns = Recents(), 0
    told: list[tuple[int, int]] = []
    for later_ns, length_ns in steps:
        t_ns += later_ns
        told.append((t_ns, length_ns))
    for first in range(0, len(told), at_once):
        some = told[first : first + at_once]
        shares = [0.0] * len(some)
        recents.add([t for t, _ in some], [length for _, length in some], shares, shares)
        end_ns = some[-1][0]
        start_ns = end_ns - 2 * SECOND_NS

        inside = [
            max(end - max(end - length, start_ns), 0) for end, length in told[: first + at_once]
        ]
        assert recents.seconds_ns(start_ns, end_ns)[Phase.DECODE] == sum(inside)


def test_steps_out_of_reach_are_forgotten() -> None:
    recents = Recents()
    for second in (0, 1, 3, 4):
        recents.add(second * SECOND_NS, 1, 0.0, 0.0)

    assert len(recents) == 2
    assert recents.longest_ns == 1


def test_phases_are_told_apart_and_fillers_are_neither() -> None:
    recents = Recents()
    recents.add([10, 20, 30], [10, 10, 10], [1.0, 0.25, 0.0], [0.0, 0.0, 1.0])

    assert recents.seconds_ns(0, 30) == {Phase.PREFILL: 12, Phase.DECODE: 8}
    assert recents.seconds_ns(5, 15) == {Phase.PREFILL: 6, Phase.DECODE: 4}
