"""Activity in the span of a late step: claimed once, or never counted as unattributed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.devices.late_steps import LateSteps
from disagg_exporter.accounting.intervals.activity import ActivitySample


def test_activity_committed_as_unattributed_is_claimed_once() -> None:
    late = LateSteps(1000)
    late.commit((0, 50), 30)
    late.commit((50, 100), 50)

    assert late.add(40, 80, watermark_ns=100) == 10 + 30
    assert late.add(0, 100, watermark_ns=100) == 20 + 20
    assert late.add(0, 100, watermark_ns=100) == 0


def test_a_late_step_claims_only_the_activity_in_its_own_span() -> None:
    late = LateSteps(1000)
    late.commit((0, 100), 5)

    assert late.add(200, 300, watermark_ns=100) == 0
    assert late.add(0, 90, watermark_ns=100) == 5


def test_activity_older_than_the_longest_step_is_forgotten() -> None:
    late = LateSteps(100)
    late.commit((0, 50), 50)
    late.commit((50, 150), 0)

    assert late.add(0, 50, watermark_ns=150) == 0


def test_uncommitted_activity_in_a_late_steps_span_is_the_steps_own() -> None:
    late = LateSteps(1000)
    samples = [ActivitySample(t, t + 10, 1.0) for t in range(0, 60, 10)]

    assert late.add(0, 30, watermark_ns=10) == 0
    assert late.others(samples) == [samples[0], *samples[3:]]
    late.commit((10, 30), 0)
    assert late.others(samples) == samples


def test_long_foreign_activity_is_kept_in_few_stretches() -> None:
    late = LateSteps(10_000)
    for start in range(0, 5000, 10):
        late.commit((start, start + 10), 4)

    assert len(late.checkpoint()) <= 32
    assert late.add(0, 5000, watermark_ns=5000) == 500 * 4


def test_the_unclaimed_activity_is_restored_in_the_next_daemon() -> None:
    late = LateSteps(1000)
    late.commit((0, 50), 30)
    late.commit((50, 100), 10)
    late.add(50, 100, watermark_ns=100)

    after = LateSteps(1000, late.checkpoint())

    assert late.checkpoint() == ((0, 50, 30),)
    assert after.add(0, 100, watermark_ns=100) == 30


PLACES = st.tuples(st.integers(0, 200), st.integers(0, 30)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(PLACES, max_size=20), st.integers(0, 120))
def test_a_sample_outside_all_late_spans_is_anothers_activity(
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


def test_overlapping_late_spans_are_merged_into_one() -> None:
    """Otherwise each pass over the activity would cost more than the one before."""
    late = LateSteps(10**12)
    for end in range(6, 100_000, 5):
        late.add(end - 6, end, watermark_ns=0)

    assert late.places == 1
