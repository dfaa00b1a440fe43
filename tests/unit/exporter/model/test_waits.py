"""Waits between two states of a histogram, and when they are called late."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import Histogram
from disagg_exporter.model.waits import LatencyTargets, are_late, mean, merged, quantile, since

RULES = Path(__file__).parents[4] / "alerts" / "rules" / "disagg-recording-verdict.yaml"
TTFT = Histogram((0.1, 0.2, 0.4), (0.0, 90.0, 100.0, 100.0), 18.0)
TARGETS = LatencyTargets(ttft_seconds=0.5, itl_seconds=0.05)


def test_quantiles_are_estimated_as_prometheus_does() -> None:
    assert quantile(TTFT, 0.95) == pytest.approx(0.3)
    assert quantile(TTFT, 0.5) == pytest.approx(0.1 + 0.1 * 50 / 90)
    assert quantile(Histogram((0.1, 0.5), (10.0, 20.0, 20.0), 3.0), 0.25) == pytest.approx(0.05)
    # Beyond the last bound nothing is known but that.
    assert quantile(Histogram((0.1,), (0.0, 5.0), 50.0), 0.5) == 0.1


def test_without_observations_there_is_no_latency() -> None:
    assert quantile(since(TTFT, TTFT), 0.95) is None
    assert (quantile(None, 0.5), mean(None), mean(TTFT)) == (None, None, 0.18)


def test_histograms_are_merged_by_the_bounds_of_the_first() -> None:
    coarse = Histogram((0.2,), (10.0, 20.0), 5.0)

    assert merged([coarse, TTFT]) == Histogram((0.2,), (100.0, 120.0), 23.0)
    assert merged([]) is None


def test_a_decreased_histogram_was_reset() -> None:
    assert since(TTFT, replace(TTFT, counts=(1.0, 91.0, 101.0, 101.0))) == TTFT


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(0, 9))
def test_the_increase_is_what_was_added(counts: list[int], added: int) -> None:
    earlier = Histogram((0.1, 0.2), (counts[0], sum(counts[:2]), sum(counts)), 1.0)
    later = replace(earlier, counts=tuple(count + added for count in earlier.counts), sum=1.5)

    assert since(later, earlier) == Histogram((0.1, 0.2), (added,) * 3, 0.5)


def waits(target: float, late: float, total: float) -> Histogram:
    return Histogram((target, 10.0), (total - late, total, total), total)


@pytest.mark.parametrize(
    ("first", "between", "late"),
    [
        ((2, 20), None, True),
        ((1, 20), None, False),  # a twentieth is not more than a twentieth
        ((19, 19), None, False),  # what a few requests met is no share
        (None, (251, 5000), True),
        (None, (4999, 4999), False),
        ((0, 100), (5000, 5000), True),
        (None, None, False),
    ],
)
def test_more_than_a_twentieth_of_enough_tokens_is_late(
    first: tuple[float, float] | None, between: tuple[float, float] | None, late: bool
) -> None:
    first_token = waits(0.5, *first) if first else None
    between_tokens = waits(0.05, *between) if between else None

    assert are_late(first_token, between_tokens, TARGETS) is late


def test_observations_in_the_bucket_of_the_target_are_not_counted_as_late() -> None:
    unknown = Histogram((0.4, 0.8), (0.0, 100.0, 100.0), 50.0)

    assert not are_late(unknown, None, TARGETS)
    assert are_late(unknown, None, replace(TARGETS, ttft_seconds=0.4))


def test_the_bounds_are_those_of_the_recorded_verdict() -> None:
    rules = yaml.load(RULES.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"][0]["rules"]
    [late] = (rule["expr"] for rule in rules if "late" in str(rule.get("labels")))

    assert re.findall(r"_(?:slow|requests|tokens):\S+ >=? (.*)", late) == [
        *("0.05", "20 / 300", "0.05", "5000 / 300")
    ]
