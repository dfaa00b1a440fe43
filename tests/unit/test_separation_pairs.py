"""What `bench/separation` learns from mixed deployments, and how it counts verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from bench.separation.deployments import Deployment, Kind, Pair, Parallel, pairs_of, read_pairs
from bench.separation.pairs import errors_of_neighbours, score
from bench.separation.predicted import Predicted
from bench.separation.step_costs import LearnedSteps

from disagg_cluster.planner.separation.verdict import Gain

KIND = Kind("gpu", "model", "fp8", 1000, 500)
# Long outputs have long contexts without long prompts, which separates attention from prompts.
SWEPT = ((1000, 500), (8000, 500), (1000, 15000))
MEASURED, UNMEASURED = Parallel(8, 1, 8, 1), Parallel(1, 8, 1, 8)


@dataclass(frozen=True)
class TabledSteps:
    """A fake table: a line over batch and context."""

    parallel: Parallel
    kv_tokens: float | None = None

    def decode_seconds(self, requests: float, context_tokens: float) -> float:
        """Return the time of a step."""
        return 0.005 + 1e-4 * requests + 1e-8 * requests * context_tokens

    def prompt_seconds(self, prompt_tokens: int) -> float:
        """Return the time of a prompt."""
        return 2e-5 * prompt_tokens


def mixed(
    concurrency: int,
    prompt_tokens: int,
    decode: float,
    prompt: float,
    attention: float | None = None,
    version: str = "1.0",
    output_tokens: int = 500,
) -> Deployment:
    """Return a row of a deployment with step times that are a multiple of the table's."""
    table = TabledSteps(MEASURED)
    kind = KIND._replace(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    context = prompt_tokens + kind.output_tokens / 2
    steady = table.decode_seconds(concurrency, 1)
    reading = table.decode_seconds(concurrency, context) - steady
    step = decode * steady + (decode if attention is None else attention) * reading
    each = prompt * table.prompt_seconds(prompt_tokens)
    tpot = step + concurrency * each / kind.output_tokens
    return Deployment(kind, "engine", version, True, ("", ""), MEASURED, 8, concurrency, each, tpot)


@pytest.mark.parametrize(("decode", "prompt"), [(1.3, 1.0), (0.8, 1.5), (1.0, 0.7)])
def test_the_error_of_a_table_is_learned_for_each_phase(decode: float, prompt: float) -> None:
    rows = [
        mixed(concurrency, prompt_tokens, decode, prompt, output_tokens=output_tokens)
        for concurrency in (4, 16, 64, 256)
        for prompt_tokens, output_tokens in SWEPT
    ]
    table = TabledSteps(MEASURED)

    learned = LearnedSteps({MEASURED: table}, rows)  # type: ignore[dict-item] # a fake table

    step = learned.decode(MEASURED, 64, 1250)
    assert step.seconds == pytest.approx(decode * table.decode_seconds(64, 1250), rel=0.07)
    assert step.error < 0.12
    told = learned.prompt(MEASURED, 8000).seconds
    assert told == pytest.approx(prompt * table.prompt_seconds(8000), rel=0.15)


def test_an_error_in_attention_is_not_attributed_to_prompts_or_other_step_time() -> None:
    """Attention takes a third of the table's time: that must not be attributed to prompts."""
    rows = [
        mixed(concurrency, prompt, 1.0, 1.0, attention=0.33, output_tokens=output)
        for concurrency in (4, 16, 64, 256)
        for prompt, output in SWEPT
    ]
    table = TabledSteps(MEASURED)

    learned = LearnedSteps({MEASURED: table}, rows)  # type: ignore[dict-item] # a fake table

    short, long = (learned.decode(MEASURED, 256, context).seconds for context in (1, 8250))
    assert short == pytest.approx(table.decode_seconds(256, 1), rel=0.07)
    assert long < 0.8 * table.decode_seconds(256, 8250)
    assert learned.prompt(MEASURED, 8000).seconds == pytest.approx(0.16, rel=0.2)


def test_rows_of_older_software_do_not_make_the_newest_slower() -> None:
    old = [mixed(concurrency, 1000, 1.5, 1.0, version="0.9.post1") for concurrency in (8, 32, 128)]
    new = [mixed(concurrency, 1000, 1.0, 1.0, version="0.10") for concurrency in (8, 32, 128)]
    table = TabledSteps(MEASURED)

    told = [
        LearnedSteps({MEASURED: table}, rows).decode(MEASURED, 32, 1250).seconds  # type: ignore[dict-item] # a fake table
        for rows in (new, old + new, old)
    ]

    assert told[0] < told[1] < told[2]
    assert told[1] < math.sqrt(told[0] * told[2])


def test_rows_are_likelier_under_a_table_with_a_single_error_factor() -> None:
    steps = {MEASURED: TabledSteps(MEASURED)}
    alike = [mixed(concurrency, 1000, 1.3, 1.0) for concurrency in (8, 32, 128)]
    wild = [mixed(8, 1000, 1.3, 1.0), mixed(32, 1000, 0.5, 1.0), mixed(128, 1000, 3.0, 1.0)]

    told = [LearnedSteps(steps, rows).evidence for rows in (alike, wild)]  # type: ignore[arg-type] # a fake table

    assert told[0] > told[1]


def test_cache_room_is_that_of_the_table_or_as_much_as_was_observed() -> None:
    small = {MEASURED: TabledSteps(MEASURED, 1e4), UNMEASURED: TabledSteps(UNMEASURED, 0.0)}
    row = mixed(64, 1000, 1.0, 1.0)

    learned = LearnedSteps(small, [row])  # type: ignore[arg-type] # fake tables

    assert learned.room_tokens(MEASURED) > 5e4
    assert learned.room_tokens(UNMEASURED) == 0
    unknown = LearnedSteps({MEASURED: TabledSteps(MEASURED)}, [])  # type: ignore[dict-item] # a fake table
    assert unknown.room_tokens(MEASURED) == math.inf


def test_the_error_grows_with_the_distance_from_what_was_measured() -> None:
    rows = [mixed(concurrency, 1000, 1.2, 1.0) for concurrency in (32, 64)]
    steps = {each: TabledSteps(each) for each in (MEASURED, UNMEASURED)}

    learned = LearnedSteps(steps, rows)  # type: ignore[arg-type] # fake tables

    errors = [
        learned.decode(parallel, batch, 1250).error
        for parallel, batch in ((MEASURED, 48), (MEASURED, 2048), (UNMEASURED, 2048))
    ]
    assert errors == sorted(errors)
    assert errors[0] < errors[1]


def test_the_gain_of_a_pair_compares_the_best_deployments_within_the_target() -> None:
    def row(way: bool, gpus: int, concurrency: int, tpot: float) -> Deployment:
        return Deployment(
            KIND, "engine", "1.0", way, ("", ""), MEASURED, gpus, concurrency, 0.5, tpot
        )

    rows = [row(True, 8, 16, 0.02), row(True, 8, 64, 0.06), row(False, 16, 64, 0.02)]

    [pair] = pairs_of(rows, (20,))

    assert pair.gain == pytest.approx((64 / 16) / (16 / 8))


def test_only_verdicts_on_gains_beyond_a_tenth_are_counted() -> None:
    def predicted(measured: float, low: float, ratio: float, high: float) -> Predicted:
        pair = Pair(KIND, 20.0, 1.0, measured)
        return Predicted(pair, Gain(ratio, low, high), "engine", MEASURED, MEASURED, 1)

    found = score(
        5,
        [
            predicted(1.5, 1.2, 1.5, 1.8),
            predicted(0.5, 0.4, 0.6, 0.9),
            predicted(0.6, 1.1, 1.3, 1.5),
            predicted(1.05, 0.8, 0.9, 1.0),
            predicted(2.0, 0.8, 1.2, 2.0),
        ],
    )

    assert (found.decided, found.clear, found.right, found.winners) == (4, 3, 2, 1)
    assert (found.losers, found.losers_named) == (2, 1)


def test_neighbouring_speeds_predict_a_gain_by_a_power_law() -> None:
    other = KIND._replace(model="other")
    pairs = [
        Pair(KIND, 20, 1, 4),
        Pair(KIND, 40, 1, 3),
        Pair(KIND, 80, 1, 1),
        Pair(other, 40, 1, 9),
    ]

    # 40 lies halfway between 20 and 80, where the gains of 4 and 1 give 2, a third less than 3.
    assert list(errors_of_neighbours(pairs, pairs)) == [pytest.approx(1 / 3)]


def test_the_measured_pairs_are_as_listed() -> None:
    from pathlib import Path

    pairs = read_pairs(Path("tests/data/aiconfigurator/separation_pairs.csv"))

    assert len(pairs) == 21
    assert sum(pair.gain < 0.9 for pair in pairs) == 3
    assert all(math.isfinite(pair.gain) for pair in pairs)
