from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.compare.comparison import (
    Comparison,
    MeasuredChange,
    UnknownMeasure,
    compare,
)
from disagg_cluster.planner.compare.matching import UndecidedComparison
from disagg_cluster.planner.compare.minutes import SpanMinutes

BOUNDS = (0.1, 0.5, 2.0, float("inf"))


def minutes(
    seed: int, steps: int = 240, load: float = 10.0, gpus: float = 8.0, spread: float = 0.3
) -> SpanMinutes:
    """A load that wanders; every GPU is held all the time, latencies grow with the load."""
    rng = np.random.default_rng(seed)
    wander = np.convolve(rng.normal(0, 1, steps + 20), np.ones(20) / 20, "valid")[:steps]
    requests = load * np.exp(spread * wander + rng.normal(0, 0.05, steps))
    prompt = requests * 500 * rng.lognormal(0, 0.05, steps)
    output = requests * 100 * rng.lognormal(0, 0.05, steps)
    within = np.array([0.5, 0.9, 0.99, 1.0])[:, None] * requests
    return SpanMinutes(
        60.0,
        requests,
        prompt,
        output,
        np.full(steps, gpus),
        400 * gpus * rng.lognormal(0, 0.02, steps),
        output * 0.02 * (1 + requests / 100),
        output,
        BOUNDS,
        within,
    )


def changes(before: SpanMinutes, after: SpanMinutes) -> dict[str, MeasuredChange]:
    found = compare(before, after)
    assert isinstance(found, Comparison)
    return {each.name: each for each in found.measures if isinstance(each, MeasuredChange)}


def test_fewer_gpus_for_the_same_load_are_more_tokens_each() -> None:
    found = changes(minutes(1), minutes(2, gpus=6.0))

    tokens = found["tokens_per_gpu_second"]
    assert tokens.change_ratio == pytest.approx(1 / 3, abs=0.08)
    assert tokens.low < tokens.change_ratio < tokens.high
    assert tokens.verdict == "better"
    assert found["joules_per_million_tokens"].verdict == "better"
    assert found["inter_token_latency_mean_seconds"].verdict == "no sure difference"


def test_two_spans_alike_differ_seldom() -> None:
    """Ninety in a hundred intervals should hold no change; of thirty at most nine may not."""
    wrong = [
        changes(minutes(seed), minutes(seed + 1000))["tokens_per_gpu_second"].verdict
        != "no sure difference"
        for seed in range(30)
    ]

    assert sum(wrong) <= 9


def test_a_busier_span_is_not_taken_for_a_better_one() -> None:
    """Twice the load for half of the time: only the hours alike are compared."""
    quiet = minutes(3, steps=480, load=10.0)
    mixed, busy = minutes(4, steps=240, load=10.0), minutes(5, steps=240, load=40.0)
    joined = SpanMinutes(
        60.0,
        *(
            np.concatenate([getattr(mixed, name), getattr(busy, name)])
            for name in (
                *("requests", "prompt_tokens", "output_tokens", "gpus", "watts"),
                *("between_tokens_seconds", "between_tokens_count"),
            )
        ),
        BOUNDS,
        np.hstack([mixed.first_token_buckets, busy.first_token_buckets]),
    )
    raw = (joined.prompt_tokens.sum() / joined.gpus.sum()) / (
        quiet.prompt_tokens.sum() / quiet.gpus.sum()
    )
    assert raw > 2

    found = compare(quiet, joined)

    assert isinstance(found, Comparison)
    (tokens, *_) = found.measures
    assert isinstance(tokens, MeasuredChange)
    assert abs(tokens.change_ratio) < 0.2
    assert found.matched_ratio[1] < 0.7
    assert any("of the minutes after" in each for each in found.unmatched)


def test_spans_without_any_load_in_common_are_undecided() -> None:
    found = compare(minutes(6, load=1.0), minutes(7, load=100.0))

    assert isinstance(found, UndecidedComparison)
    assert "alike in load and prompt length" in found.why


@pytest.mark.parametrize("steps", [0, 10])
def test_a_span_of_a_few_minutes_is_undecided(steps: int) -> None:
    found = compare(minutes(8, steps=max(steps, 1)), minutes(9))

    assert isinstance(found, UndecidedComparison)
    assert "minutes before of which requests, tokens and GPUs are known" in found.why


def test_what_one_span_does_not_tell_is_unknown_and_the_rest_is_told() -> None:
    silent = replace(
        minutes(10),
        watts=np.full(240, np.nan),
        first_token_bounds=(),
        first_token_buckets=np.empty((0, 240)),
    )

    found = compare(silent, minutes(11))

    assert isinstance(found, Comparison)
    unknown = {each.name: each.why for each in found.measures if isinstance(each, UnknownMeasure)}
    assert set(unknown) == {"time_to_first_token_p95_seconds", "joules_per_million_tokens"}
    assert set(unknown.values()) == {"it is not known in the minutes before"}


def test_the_first_token_quantile_is_read_within_its_bucket() -> None:
    """0.9 come within 0.5 s and 0.99 within 2 s: 0.95 lie five ninths of the way between."""
    found = changes(minutes(12), minutes(13))["time_to_first_token_p95_seconds"]

    assert found.before == pytest.approx(0.5 + 1.5 * 5 / 9, rel=1e-6)


def test_gaps_count_for_nothing() -> None:
    holed = minutes(14)
    for values in (holed.requests, holed.prompt_tokens, holed.gpus):
        values[50:100] = np.nan

    found = changes(minutes(15), holed)

    assert found["tokens_per_gpu_second"].verdict == "no sure difference"
