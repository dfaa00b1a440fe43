from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.capacity.curves.limits import FARTHEST, find_batch, growing
from disagg_exporter.model import DecodeLimit, LimitConfidence


def line(*batches: float, base: float = 0.010, each: float = 0.0002, n: int = 20) -> list[Point]:
    """Decode steps of 10 ms plus 0.2 ms per request."""
    return [Point(b, base + each * b, n, scatter=0.02) for b in batches]


def test_a_target_between_two_batches_is_interpolated() -> None:
    """30 ms are met by 100 requests."""
    found = find_batch(line(8, 16, 64, 128, 256), 0.030)

    assert found == DecodeLimit(pytest.approx(100), LimitConfidence.BOTH)


def test_a_target_above_all_steps_is_extrapolated_along_a_steep_line() -> None:
    """The slope's error makes the batch too small rather than too large."""
    found = find_batch(line(8, 16, 24, 32), 0.030)

    assert found is not None
    assert found.requests is not None
    assert 80 < found.requests < 100
    assert found.confidence is LimitConfidence.ONE


def test_nearly_equal_times_do_not_imply_a_flat_line() -> None:
    """A line through them says 72; but kernels like one size better than the next by 2 %."""
    found = find_batch([Point(4, 0.0083, 64), Point(5.6, 0.00835, 64), Point(8, 0.0084, 64)], 0.010)

    assert found is not None
    assert found.requests is not None
    assert 12 < found.requests < 24


@given(st.integers(1, 6), st.floats(1.05, 4.0), st.floats(0.0, 0.02))
def test_more_steps_of_the_same_sizes_do_not_make_a_far_batch_certain(
    doublings: int, wider: float, each: float
) -> None:
    """Differences between neighbouring sizes stay, however often they were observed."""
    sizes = [2.0**n for n in range(doublings + 1)]
    seen = line(*sizes, base=0.010, each=each, n=64)
    target = wider * seen[-1].seconds

    few = find_batch([point._replace(samples=12) for point in seen], target)
    many = find_batch(seen, target)

    assert few is not None
    assert many is not None
    assert few.requests is not None
    assert many.requests is not None
    assert few.requests <= many.requests * (1 + 1e-9)
    assert many.requests <= sizes[-1] + (target - seen[-1].seconds) / max(each, 1e-9) * (1 + 1e-6)


def test_with_a_single_batch_the_step_is_assumed_proportional() -> None:
    """18 requests in 12 ms could be 45 in 30 ms at the least."""
    found = find_batch([Point(18, 0.012, 50)], 0.030)

    assert found == DecodeLimit(pytest.approx(45), LimitConfidence.ONE)


def test_nothing_is_inferred_far_beyond_observations() -> None:
    """Steps that do not grow at all would allow any batch."""
    found = find_batch(line(4, 8, 16, each=0.0, n=64), 10.0)

    assert found == DecodeLimit(FARTHEST * 16, LimitConfidence.ONE)


def test_a_target_below_all_steps_is_extrapolated_down() -> None:
    """20 ms are met by 50 requests; never fewer than 64 ran. The slope's error makes it fewer."""
    found = find_batch(line(64, 128, 256), 0.020)

    assert found is not None
    assert found.requests is not None
    assert 45 < found.requests <= 50
    assert found.confidence is LimitConfidence.ONE


def test_a_single_slow_batch_gives_only_an_upper_bound() -> None:
    """64 requests in 22.8 ms: 56 meet 20 ms if steps grew with the batch, and 50 by the truth."""
    found = find_batch(line(64), 0.020)

    assert found == DecodeLimit(None, LimitConfidence.ONE, below=pytest.approx(64 * 20 / 22.8))


def test_a_far_too_slow_single_batch_is_unreachable() -> None:
    """64 requests in 6.4 s: even one alone would take 0.1 s."""
    found = find_batch([Point(64, 6.4, 20, scatter=0.02)], 0.09)

    assert found == DecodeLimit(None, LimitConfidence.UNREACHABLE)


def test_an_extrapolated_smaller_batch_is_hardly_ever_too_large() -> None:
    """For two neighbouring sizes with random times, on a flat curve."""
    draw, found = Random(1), []
    for _ in range(300):
        seconds = [(0.030 + 1e-4 * n) * draw.gauss(1, 0.01) for n in (64, 72)]
        points = [Point(n, s, 20, scatter=0.02) for n, s in zip((64, 72), seconds, strict=True)]
        limit = find_batch(points, 0.034)
        if limit is not None and limit.requests is not None:
            found.append(limit.requests)

    assert sum(requests > 40 * 1.1 for requests in found) < 300 * 0.15


def test_a_target_that_one_request_misses_is_unreachable() -> None:
    found = find_batch(line(4, 8, 16), 0.005)

    assert found == DecodeLimit(None, LimitConfidence.UNREACHABLE)


def test_too_few_steps_give_no_limit() -> None:
    assert find_batch(line(8, 16, n=4), 0.030) is None
    assert find_batch([], 0.030) is None


def test_a_few_steps_beyond_the_target_are_one_side_only() -> None:
    points = [*line(8, 16, 64), Point(128, 0.0356, 4)]

    found = find_batch(points, 0.030)

    assert found is not None
    assert found.confidence is LimitConfidence.ONE


points = st.lists(
    st.builds(
        Point,
        st.floats(1, 1e4),
        st.floats(1e-4, 10),
        st.integers(1, 64),
        st.floats(0, 2),
        st.just(0),
    ),
    min_size=1,
    max_size=20,
).map(lambda several: sorted(several, key=lambda point: point.size))


@given(points)
def test_growing_never_falls_and_keeps_the_mean(several: list[Point]) -> None:
    grown = growing(several)

    seconds = [point.seconds for point in grown]
    assert seconds == sorted(seconds)
    assert sum(p.seconds * p.samples for p in grown) == pytest.approx(
        sum(p.seconds * p.samples for p in several)
    )


@given(points, st.floats(1e-4, 1), st.floats(1.0, 10.0))
def test_a_wider_target_never_allows_fewer_requests(
    several: list[Point], target: float, wider: float
) -> None:
    """Whatever was observed; within floating-point rounding."""
    narrow, wide = find_batch(several, target), find_batch(several, target * wider)

    if narrow is not None and narrow.requests is not None:
        assert wide is not None
        assert wide.requests is not None
        assert wide.requests >= narrow.requests * (1 - 1e-9)
