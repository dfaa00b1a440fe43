from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.intervals.timeline import WorkShares
from disagg_exporter.accounting.timelines.recent_window import RecentWindow
from disagg_exporter.model import SECOND_NS, Phase
from support.plain_timeline import DECODE, DUMMY, PREFILL

STEPS = st.lists(st.tuples(st.integers(0, SECOND_NS), st.integers(0, 3 * SECOND_NS)), min_size=1)


@given(STEPS, st.integers(1, 5))
def test_the_last_two_seconds_are_complete(steps: list[tuple[int, int]], at_once: int) -> None:
    """Whatever was dropped in between, added one by one or several at once."""
    recents, t_ns = RecentWindow(), 0
    told: list[tuple[int, int]] = []
    for later_ns, length_ns in steps:
        t_ns += later_ns
        told.append((t_ns, length_ns))
    for first in range(0, len(told), at_once):
        some = told[first : first + at_once]
        recents.add(*np.array(some).T, *np.zeros((2, len(some))))
        end_ns = some[-1][0]
        start_ns = end_ns - 2 * SECOND_NS

        inside = [
            max(end - max(end - length, start_ns), 0) for end, length in told[: first + at_once]
        ]
        assert recents.phases_ns(start_ns, end_ns)[Phase.DECODE] == sum(inside)


def test_steps_out_of_reach_are_forgotten() -> None:
    recents = RecentWindow()
    for second in (0, 1, 3, 4):
        recents.add_one(second * SECOND_NS, 1, DECODE)

    assert len(recents) == 2
    assert recents.longest_ns == 1


def test_a_step_that_arrives_too_late_for_the_window_is_not_kept() -> None:
    """The window ends at the newest step, whichever arrived last."""
    recents = RecentWindow()
    for t_ns, length_ns in ((10 * SECOND_NS, 1), (5 * SECOND_NS, SECOND_NS)):
        recents.add_one(t_ns, length_ns, DECODE)

    assert (len(recents), recents.longest_ns) == (1, 1)


def test_a_late_step_is_dropped_as_soon_as_one_in_order() -> None:
    recents = RecentWindow()
    for tenths in (100, 85, 119):
        recents.add_one(tenths * SECOND_NS // 10, 1, DECODE)

    assert len(recents) == 2
    assert recents.phases_ns(0, 12 * SECOND_NS)[Phase.DECODE] == 2


def test_steps_are_divided_by_phase_and_dummy_steps_are_neither() -> None:
    recents = RecentWindow()
    for t_ns, work in ((10, PREFILL), (20, WorkShares(0.25)), (30, DUMMY)):
        recents.add_one(t_ns, 10, work)

    assert recents.phases_ns(0, 30) == {Phase.PREFILL: 12, Phase.DECODE: 8}
    assert recents.phases_ns(5, 15) == {Phase.PREFILL: 6, Phase.DECODE: 4}
