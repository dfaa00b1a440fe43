from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.compare.comparison import (
    Comparison,
    MeasuredChange,
    UnknownMeasure,
    compare,
)
from disagg_cluster.planner.compare.comparison_text import MEASURE_WORDS
from disagg_cluster.planner.compare.matching import UndecidedComparison
from disagg_cluster.planner.compare.minutes import SpanMinutes

BOUNDS = (0.1, 0.5, 2.0, float("inf"))


def minutes(
    seed: int, steps: int = 240, load: float = 10.0, gpus: float = 8.0, spread: float = 0.3
) -> SpanMinutes:
    """A drifting load; every GPU is held all the time, latencies grow with the load."""
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


def tokens_only(span: SpanMinutes) -> SpanMinutes:
    """The same with only tokens known, to compare hundreds of spans quickly."""
    nothing = np.full(span.steps, np.nan)
    return replace(
        span,
        watts=nothing,
        between_tokens_seconds=nothing,
        first_token_bounds=(),
        first_token_buckets=np.empty((0, 0)),
    )


def test_each_measure_has_a_display_name() -> None:
    found = compare(tokens_only(minutes(1)), tokens_only(minutes(2)))

    assert isinstance(found, Comparison)
    assert {each.name for each in found.measures} == set(MEASURE_WORDS)


def test_fewer_gpus_for_the_same_load_give_more_tokens_per_gpu() -> None:
    found = changes(minutes(1), minutes(2, gpus=6.0))

    tokens = found["tokens_per_gpu_second"]
    assert tokens.change_ratio == pytest.approx(1 / 3, abs=0.08)
    assert tokens.low < tokens.change_ratio < tokens.high
    assert tokens.verdict == "better"
    assert found["joules_per_million_tokens"].verdict == "better"
    assert found["inter_token_latency_mean_seconds"].verdict == "no sure difference"


def test_equal_spans_rarely_differ() -> None:
    """90 % of intervals should contain no change; of thirty at most nine may not."""
    wrong = [
        changes(tokens_only(minutes(seed)), tokens_only(minutes(seed + 1000)))[
            "tokens_per_gpu_second"
        ].verdict
        != "no sure difference"
        for seed in range(30)
    ]

    assert sum(wrong) <= 9


@pytest.mark.parametrize(("minutes_alike", "steps"), [(10, 240), (33, 240)])
def test_equal_spans_with_slow_drift_rarely_differ(minutes_alike: int, steps: int) -> None:
    """Likewise at most eight of forty, with a drift about a tenth as long as a span, or more."""

    def wandering(seed: int) -> SpanMinutes:
        rng, stays = np.random.default_rng(seed), np.exp(-1 / minutes_alike)
        level = [rng.normal()]
        for shock in rng.normal(0, np.sqrt(1 - stays**2), steps - 1):
            level.append(stays * level[-1] + shock)
        span = tokens_only(minutes(seed, steps, spread=0.0))
        return replace(span, gpus=span.gpus * np.exp(0.1 * np.array(level)))

    wrong = [
        changes(wandering(seed), wandering(seed + 1000))["tokens_per_gpu_second"].verdict
        != "no sure difference"
        for seed in range(40)
    ]

    assert sum(wrong) <= 8


def test_a_load_that_grew_by_less_than_a_stratum_is_no_better_use_of_gpus() -> None:
    """A tenth more requests on the same GPUs: at equal load they would do the same."""
    wrong = [
        changes(
            tokens_only(minutes(seed, spread=0.0)),
            tokens_only(minutes(seed + 1000, load=11.0, spread=0.0)),
        )["tokens_per_gpu_second"].verdict
        != "no sure difference"
        for seed in range(20)
    ]

    assert sum(wrong) <= 5


def test_the_course_of_a_day_is_not_noise() -> None:
    """Ten percent more GPUs are seen, though the load swings threefold as it did the day before."""
    course = np.exp(0.55 * np.sin(np.arange(1440) * 2 * np.pi / 1440))

    def day(seed: int, gpus: float) -> SpanMinutes:
        span = tokens_only(minutes(seed, 1440, spread=0.0, gpus=gpus))
        return replace(
            span,
            requests=span.requests * course,
            prompt_tokens=span.prompt_tokens * course,
            output_tokens=span.output_tokens * course,
        )

    tokens = changes(day(1, 8.0), day(2, 8.8))["tokens_per_gpu_second"]

    assert tokens.verdict == "worse"
    assert tokens.low < 8.0 / 8.8 - 1 < tokens.high
    assert tokens.high - tokens.low < 0.1


def test_a_difference_of_load_is_unsure_where_loads_never_vary() -> None:
    """Nothing says how far the measure follows a load that is constant in either span."""

    def steady(load: float) -> SpanMinutes:
        level = np.full(240, load)
        span = tokens_only(minutes(1))
        return replace(span, requests=level, prompt_tokens=500 * level, output_tokens=100 * level)

    tokens = changes(steady(9.5), steady(10.5))["tokens_per_gpu_second"]

    assert tokens.change_ratio == pytest.approx(10.5 / 9.5 - 1)
    assert tokens.verdict == "no sure difference"


def test_a_busier_span_is_not_a_better_one() -> None:
    """Higher load for half of the time: only matching hours are compared."""
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
    assert "before of which requests, tokens and GPUs are known" in found.why


def test_a_measure_missing_in_one_span_is_unknown_and_others_are_compared() -> None:
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
    """0.9 are within 0.5 s and 0.99 within 2 s: 0.95 is five ninths of the way between."""
    found = changes(minutes(12), minutes(13))["time_to_first_token_p95_seconds"]

    assert found.before == pytest.approx(0.5 + 1.5 * 5 / 9, rel=1e-6)


def test_two_quantiles_beyond_the_largest_bound_are_not_equal() -> None:
    def slow(span: SpanMinutes, late: float) -> SpanMinutes:
        return replace(
            span, first_token_buckets=np.array([0.1, 0.2, 1 - late, 1.0])[:, None] * span.requests
        )

    both = compare(slow(minutes(1), 0.1), slow(minutes(2), 0.5))
    one = changes(slow(minutes(1), 0.01), slow(minutes(2), 0.5))

    assert isinstance(both, Comparison)
    (found,) = (each for each in both.measures if each.name == "time_to_first_token_p95_seconds")
    assert isinstance(found, UnknownMeasure)
    assert found.why == "it is beyond what is counted, 2 s, in both spans"
    assert one["time_to_first_token_p95_seconds"].verdict == "worse"


def test_a_measure_that_never_varies_does_not_differ_by_rounding() -> None:
    def steady(seed: int) -> SpanMinutes:
        rng = np.random.default_rng(seed)
        requests = 1 + 0.1 * rng.standard_normal(240)
        none, written = np.full(240, np.nan), requests * 200
        return SpanMinutes(
            60.0, requests, requests * 1000, written, requests * 1200 / 117, none,
            written * 0.021, written,
        )  # fmt: skip

    verdicts = {
        each.verdict
        for seed in range(0, 60, 2)
        for each in changes(steady(seed), steady(seed + 1)).values()
    }

    assert verdicts == {"no sure difference"}


def test_gaps_do_not_count() -> None:
    holed = minutes(14)
    for values in (holed.requests, holed.prompt_tokens, holed.gpus):
        values[50:100] = np.nan

    found = changes(minutes(15), holed)

    assert found["tokens_per_gpu_second"].verdict == "no sure difference"


def wandering(rng: np.random.Generator, steps: int) -> SpanMinutes:
    """Loads and latencies with strongly correlated minutes."""

    def wander(spread: float) -> np.ndarray:
        values = np.zeros(steps + 200)
        for at, noise in enumerate(rng.normal(0, np.sqrt(1 - 0.8**2), steps + 199), 1):
            values[at] = 0.8 * values[at - 1] + noise
        return np.exp(spread * values[200:])

    requests = 10 * wander(0.1)
    return replace(
        minutes(0, steps),
        requests=requests,
        prompt_tokens=500 * requests * wander(0.1),
        output_tokens=100 * requests * wander(0.15),
    )


def test_an_hour_of_correlated_minutes_is_not_many_observations() -> None:
    """Without the correction, four resampled quarters of an hour would differ twice as often."""
    rng = np.random.default_rng(1)

    wrong = [
        changes(wandering(rng, 60), wandering(rng, 60))["output_tokens_per_gpu_second"].verdict
        != "no sure difference"
        for _ in range(60)
    ]

    assert sum(wrong) <= 9


def test_a_measure_known_in_a_single_minute_is_undecided() -> None:
    silent = replace(minutes(16), watts=np.full(240, np.nan))
    silent.watts[100] = 1000.0

    found = compare(silent, minutes(17))

    assert isinstance(found, Comparison)
    (energy,) = [each for each in found.measures if each.name == "joules_per_million_tokens"]
    assert isinstance(energy, UnknownMeasure)
    assert energy.why == "fewer than 30 matched minutes have it"


def test_a_measure_known_only_at_some_loads_is_compared_at_those() -> None:
    """Latency rises with load; before, it is known in quiet minutes only, and nothing changed."""
    rng = np.random.default_rng(18)

    def span() -> SpanMinutes:
        requests = np.repeat([10.0, 40.0], 120) * rng.lognormal(0, 0.02, 240)
        made = minutes(0)
        count = requests * 100
        return replace(
            made,
            requests=requests,
            prompt_tokens=requests * 500,
            output_tokens=count,
            between_tokens_count=count,
            between_tokens_seconds=count * 0.001 * requests,
        )

    before, after = span(), span()
    before.between_tokens_count[125:] = np.nan

    latency = changes(before, after)["inter_token_latency_mean_seconds"]

    assert latency.change_ratio == pytest.approx(0, abs=0.05)


def test_no_output_is_zero_and_not_unknown() -> None:
    still = replace(minutes(19), output_tokens=np.zeros(240))

    found = compare(still, minutes(20))

    assert isinstance(found, Comparison)
    (output,) = [each for each in found.measures if each.name == "output_tokens_per_gpu_second"]
    assert isinstance(output, UnknownMeasure)
    assert output.why == "it is 0 in the minutes before"


def test_weeks_are_compared_in_little_memory() -> None:
    """Each array of a thousand resamples would take 80 megabytes."""
    before, after = minutes(21, steps=10_080), minutes(22, steps=10_080)

    tracemalloc.start()
    try:
        compare(before, after)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 100e6
