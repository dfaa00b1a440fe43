from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.entry import Recent
from disagg_exporter.accounting.phase import DECODE
from disagg_exporter.accounting.recents import Recents
from disagg_exporter.accounting.rules import SECOND_NS

STEPS = st.lists(st.tuples(st.integers(0, SECOND_NS), st.integers(0, 3 * SECOND_NS)), min_size=1)


@given(STEPS)
def test_the_longest_is_the_longest_of_those_kept(steps: list[tuple[int, int]]) -> None:
    """Whatever was forgotten in between, and with lengths that come more than once."""
    recents, t_ns = Recents(), 0
    for later_ns, length_ns in steps:
        t_ns += later_ns
        recents.add(Recent(t_ns, length_ns // SECOND_NS * SECOND_NS, DECODE))

        assert recents.longest_ns == max(kept.length_ns for kept in recents.newest_first())


def test_steps_out_of_reach_are_forgotten() -> None:
    recents = Recents()
    for second in (0, 1, 3, 4):
        recents.add(Recent(second * SECOND_NS, 1, DECODE))

    assert [kept.t_ns // SECOND_NS for kept in recents.newest_first()] == [4, 3]
