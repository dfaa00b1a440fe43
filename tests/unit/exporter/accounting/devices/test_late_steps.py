"""Activity at the place of a step that came too late: claimed once, or never taken for nobody's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.devices.late_steps import LateSteps
from disagg_exporter.accounting.intervals.activity import ActivitySample


def test_what_was_committed_as_nobodys_is_claimed_once() -> None:
    late = LateSteps(1000)
    late.commit((0, 50), 30)
    late.commit((50, 100), 50)

    assert late.add(40, 80, watermark_ns=100) == 10 + 30
    assert late.add(0, 100, watermark_ns=100) == 20 + 20
    assert late.add(0, 100, watermark_ns=100) == 0


def test_no_more_is_claimed_than_there_was_and_lies_in_the_steps_place() -> None:
    late = LateSteps(1000)
    late.commit((0, 100), 5)

    assert late.add(200, 300, watermark_ns=100) == 0
    assert late.add(0, 90, watermark_ns=100) == 5


def test_activity_is_forgotten_beyond_the_reach_of_a_step() -> None:
    late = LateSteps(100)
    late.commit((0, 50), 50)
    late.commit((50, 150), 0)

    assert late.add(0, 50, watermark_ns=150) == 0


def test_in_a_place_that_is_not_committed_activity_is_the_steps_own() -> None:
    late = LateSteps(1000)
    samples = [ActivitySample(t, t + 10, 1.0) for t in range(0, 60, 10)]

    assert late.add(0, 30, watermark_ns=10) == 0
    assert late.others(samples) == [samples[0], *samples[3:]]
    late.commit((10, 30), 0)
    assert late.others(samples) == samples


def test_its_stretches_are_few_however_long_a_stranger_stays() -> None:
    late = LateSteps(10_000)
    for start in range(0, 5000, 10):
        late.commit((start, start + 10), 4)

    assert len(late.checkpoint()) <= 32
    assert late.add(0, 5000, watermark_ns=5000) == 500 * 4


def test_a_successor_goes_on_with_what_is_left() -> None:
    late = LateSteps(1000)
    late.commit((0, 50), 30)
    late.commit((50, 100), 10)
    late.add(50, 100, watermark_ns=100)

    after = LateSteps(1000, late.checkpoint())

    assert late.checkpoint() == ((0, 50, 30),)
    assert after.add(0, 100, watermark_ns=100) == 30


PLACES = st.tuples(st.integers(0, 200), st.integers(0, 30)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(PLACES, max_size=20), st.integers(0, 120))
def test_a_sample_is_anothers_where_it_touches_no_place(
    places: list[tuple[int, int]], committed: int
) -> None:
    late = LateSteps(1000)
    for start, end in places:
        late.add(start, end, watermark_ns=0)
    late.commit((0, committed), 0)
    samples = [ActivitySample(t, t + 3, 1.0) for t in range(committed, 260, 3)]
    left = [(start, end) for start, end in places if max(start, committed) < end]

    assert late.others(samples) == [
        sample
        for sample in samples
        if all(sample.end_ns <= start or end <= sample.start_ns for start, end in left)
    ]


def test_an_engine_that_claims_more_time_than_passes_has_one_place() -> None:
    """Else each look at the activity would cost more than the one before."""
    late = LateSteps(10**12)
    for end in range(6, 100_000, 5):
        late.add(end - 6, end, watermark_ns=0)

    assert late.places == 1
