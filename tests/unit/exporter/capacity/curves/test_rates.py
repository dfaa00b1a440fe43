from __future__ import annotations

import random

import pytest

from disagg_exporter.capacity.curves.curve import Curve, Point
from disagg_exporter.capacity.curves.limits import KNEE_SHARE, batch_curve, find_knee
from disagg_exporter.capacity.curves.rates import rate_curve


def _rate(tokens: float, corner: float = 250.0) -> float:
    """A rounder corner than a roofline's, and rates that fall again with attention."""
    power = tokens**1.2
    return 30_000 * power / (power + corner**1.2) / (1 + tokens / 40_000)


def _points(seed: int, most: int = 8192) -> tuple[Point, ...]:
    dice, curve = random.Random(seed), Curve()
    for _ in range(3000):
        tokens = round(16 * (most / 16) ** dice.random())
        curve.add(tokens, tokens / _rate(tokens) * max(dice.gauss(1, 0.12), 0.1), 1)
    return curve.points(1)


def test_the_knee_of_a_round_corner_is_found_without_a_bias() -> None:
    best = max(_rate(n) for n in range(16, 8193))
    true = next(n for n in range(16, 8193) if _rate(n) >= KNEE_SHARE * best)

    found = [find_knee(_points(seed)) for seed in range(12)]

    ratios = sorted(limit.knee_tokens / true for limit in found if limit and limit.knee_tokens)
    assert len(ratios) == 12
    assert sum(ratios) / 12 == pytest.approx(1, abs=0.06)
    assert ratios[0] > 0.85
    assert ratios[-1] < 1.15


def test_the_knee_depends_little_on_which_sizes_of_a_jagged_curve_were_observed() -> None:
    # Tokens per second of prompts of 512 tokens: an 8B on an L40S, by the shipped table.
    sizes = (
        "16 32 64 91 128 182 216 256 305 363 431 512 609 725 862 1024 1218 1449 1723 2048 2436 "
        "2897 3445 4096 4871 5793 6889 8192"
    )
    rates = (
        "684 1255 2508 3380 4667 6231 7210 8367 9228 10407 11787 13206 12272 12784 13276 14608 "
        "14128 13841 14124 14530 14442 14308 14173 14065 13920 13795 13652 13516"
    )
    observed = zip(map(int, sizes.split()), map(int, rates.split()), strict=True)
    points = [Point(size, size / rate, 20, 0.01) for size, rate in observed]
    curves = [rate_curve(each) for each in (points, points[::2], points[1::2])]

    knees = sorted(curve.first_size(KNEE_SHARE * curve.best) for curve in curves)
    assert knees[-1] < 1.15 * knees[0]


def test_a_curve_stays_between_sizes_that_are_far_apart() -> None:
    sizes = (100, 500, 2000, 4000, 8000)
    curve = rate_curve([Point(n, n / _rate(n), 20) for n in sizes])

    for size in (150, 300, 1000, 3000, 6000):
        assert curve.at(size) == pytest.approx(_rate(size), rel=0.12)


def test_curves_stay_within_observed_sizes() -> None:
    curve = rate_curve([Point(n, n / _rate(n), 20) for n in (200, 400, 700, 900, 1100)])

    assert [sample.size for sample in curve.samples()] == [256, 512, 1024]


def test_curves_have_at_most_eight_samples() -> None:
    points = [Point(2.0**n, 0.01 + 1e-5 * 2**n, 20, 0.1) for n in range(16)]

    assert len(rate_curve(points).samples()) == 8
    assert [sample.size for sample in batch_curve(points)] == [1, 4, 16, 32, 64, 128, 256, 512]


def test_times_between_tokens_never_fall_with_the_batch() -> None:
    points = [Point(n, seconds, 20) for n, seconds in ((1, 0.010), (8, 0.013), (40, 0.012))]

    seconds = [sample.value for sample in batch_curve(points, gap_seconds=0.001)]

    assert seconds == sorted(seconds)
    assert seconds[0] == pytest.approx(0.011)
