from __future__ import annotations

import pytest

from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.capacity.curves.limits import KNEE_SHARE, find_knee
from disagg_exporter.model import LimitConfidence, PrefillLimit

BASE_SECONDS, TOKEN_SECONDS = 0.010, 50e-6


def affine(*sizes: float, samples: int = 20, full: int = 0) -> list[Point]:
    """Steps of 10 ms and 50 µs a token; the largest are cut off by the engine `full` times."""
    points = [Point(n, BASE_SECONDS + TOKEN_SECONDS * n, samples) for n in sizes]
    return [*points[:-1], points[-1]._replace(full=full)]


def rate(size: float) -> float:
    return size / (BASE_SECONDS + TOKEN_SECONDS * size)


def test_the_knee_lies_where_nine_tenths_of_the_best_rate_are_reached() -> None:
    """Between 1000 and 1200 tokens, if 4000 is the best observed."""
    sizes = (100, 200, 400, 800, 1000, 1200, 1400, 2000, 3000, 4000)
    found = find_knee(affine(*sizes))

    assert found is not None
    assert found.knee_tokens is not None
    assert rate(found.knee_tokens) == pytest.approx(KNEE_SHARE * rate(4000), rel=0.01)
    assert found.confidence is LimitConfidence.BOTH


def test_tokens_per_second_are_nine_tenths_of_what_larger_steps_reach_together() -> None:
    """The steps of 400 tokens are below the knee and do not count."""
    points = affine(400, 4000, 8000)
    seconds = points[1].seconds + points[2].seconds

    found = find_knee(points)

    assert found is not None
    assert found.tokens_per_second == pytest.approx(KNEE_SHARE * 12_000 / seconds)


def test_without_small_steps_the_rate_is_known_and_the_knee_is_not() -> None:
    found = find_knee(affine(4000, 6000, 8000))

    assert found == PrefillLimit(pytest.approx(KNEE_SHARE * 18_000 / 0.930), LimitConfidence.ONE)


@pytest.mark.parametrize(
    ("points", "known"),
    [
        pytest.param([], False, id="nothing seen"),
        pytest.param(affine(100, 200, 400, 800), False, id="rates still rise at the largest"),
        pytest.param(affine(2000), False, id="a single size"),
        pytest.param(affine(4000, 7900), False, id="less than a factor of two"),
        pytest.param(affine(4000, 8000), True, id="a factor of two, as fast"),
        pytest.param(affine(4000, 8000, samples=9), False, id="too few steps"),
        pytest.param(affine(2000, full=4), False, id="a single size, cut off too seldom"),
        pytest.param(affine(2000, full=5), True, id="a single size, cut off by the engine"),
        pytest.param(affine(100, 200, 400, 800, full=5), True, id="rising, but cut off there"),
        pytest.param(affine(4000, 8000, samples=4), False, id="no size seen five times"),
    ],
)
def test_a_plateau_counts_only_if_its_end_or_the_engines_limit_was_observed(
    points: list[Point], known: bool
) -> None:
    """Small steps never show how much faster larger ones would be."""
    assert (find_knee(points) is not None) is known


def test_long_contexts_lower_the_rate_but_move_no_knee() -> None:
    """Attention makes a token of a 16,000-token step a third more expensive."""
    sizes = (100, 200, 400, 800, 1600, 2000, 3000, 4000)
    short = find_knee(affine(*sizes))
    long = find_knee([*affine(*sizes), Point(16_000, 1.08, 20)])

    assert short is not None
    assert long is not None
    assert long.knee_tokens == pytest.approx(short.knee_tokens, rel=0.02)
    assert long.tokens_per_second < 0.9 * short.tokens_per_second


def test_one_lucky_size_is_not_the_plateau() -> None:
    """A few steps that seem a third faster, and vary, hide no slower size."""
    usual = affine(200, 500, 1000, 2000, 4000, 6000, 8000, samples=60)
    luck = Point(6000, 0.75 * usual[-2].seconds, 5, scatter=0.3)
    lucky = [*usual[:-2], luck, usual[-1]]

    found, expected = find_knee(lucky), find_knee(usual)

    assert found is not None
    assert expected is not None
    assert found.tokens_per_second == pytest.approx(expected.tokens_per_second, rel=0.03)


def test_steps_whose_time_does_not_follow_their_size_have_no_knee() -> None:
    """One size seems fast and larger ones are three times slower: other work is on the cores."""
    noise = [Point(20, 0.015, 10), *(Point(20 * n, 0.045 * n, 10) for n in (2, 4, 8, 16))]

    assert find_knee(noise) is None


def test_the_hosts_gap_is_part_of_a_steps_cost() -> None:
    found = find_knee(affine(4000, 8000), gap_seconds=0.02)

    assert found is not None
    assert found.tokens_per_second == pytest.approx(KNEE_SHARE * 12_000 / (0.21 + 0.41 + 0.04))
