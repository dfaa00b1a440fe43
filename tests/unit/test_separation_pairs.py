"""What `bench/separation` learns from mixed deployments, and how it counts verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from bench.separation.deployments import Deployment, Kind, Pair, Parallel, pairs_of, read_pairs
from bench.separation.foreseen import Foreseen
from bench.separation.pairs import score
from bench.separation.step_costs import LearnedSteps

from disagg_cluster.planner.separation.verdict import Gain

KIND = Kind("gpu", "model", "fp8", 1000, 500)
MEASURED, UNMEASURED = Parallel(8, 1, 8, 1), Parallel(1, 8, 1, 8)


@dataclass(frozen=True)
class TabledSteps:
    """A fake table: a line over batch and context."""

    parallel: Parallel

    def decode_seconds(self, requests: float, context_tokens: float) -> float:
        """What a step takes."""
        return 0.005 + 1e-4 * requests + 1e-8 * requests * context_tokens

    def prompt_seconds(self, prompt_tokens: int) -> float:
        """What a prompt takes."""
        return 2e-5 * prompt_tokens


def mixed(concurrency: int, prompt_tokens: int, decode: float, prompt: float) -> Deployment:
    """What a deployment would show whose steps take so many times as long as the table says."""
    table, kind = TabledSteps(MEASURED), KIND._replace(prompt_tokens=prompt_tokens)
    step = decode * table.decode_seconds(concurrency, prompt_tokens + kind.output_tokens / 2)
    each = prompt * table.prompt_seconds(prompt_tokens)
    tpot = step + concurrency * each / kind.output_tokens
    return Deployment(kind, "engine", True, ("", ""), MEASURED, 8, concurrency, each, tpot)


@pytest.mark.parametrize(("decode", "prompt"), [(1.3, 1.0), (0.8, 1.5), (1.0, 0.7)])
def test_how_far_tables_are_off_is_learned_for_either_phase(decode: float, prompt: float) -> None:
    rows = [
        mixed(concurrency, tokens, decode, prompt)
        for concurrency in (4, 16, 64, 256)
        for tokens in (1000, 8000)
    ]
    table = TabledSteps(MEASURED)

    learned = LearnedSteps({MEASURED: table}, rows)  # type: ignore[dict-item] # a fake table

    step = learned.decode(MEASURED, 64, 1250)
    assert step.seconds == pytest.approx(decode * table.decode_seconds(64, 1250), rel=0.05)
    assert step.error < 0.1
    told = learned.prompt(MEASURED, 8000).seconds
    assert told == pytest.approx(prompt * table.prompt_seconds(8000), rel=0.15)


def test_less_is_known_far_from_what_was_measured_and_least_of_other_workers() -> None:
    rows = [mixed(concurrency, 1000, 1.2, 1.0) for concurrency in (32, 64)]
    steps = {each: TabledSteps(each) for each in (MEASURED, UNMEASURED)}

    learned = LearnedSteps(steps, rows)  # type: ignore[arg-type] # fake tables

    errors = [
        learned.decode(parallel, batch, 1250).error
        for parallel, batch in ((MEASURED, 48), (MEASURED, 2048), (UNMEASURED, 2048))
    ]
    assert errors == sorted(errors)
    assert errors[0] < errors[1]


def test_a_pair_is_best_over_best_of_those_fast_enough() -> None:
    def row(way: bool, gpus: int, concurrency: int, tpot: float) -> Deployment:
        return Deployment(KIND, "engine", way, ("", ""), MEASURED, gpus, concurrency, 0.5, tpot)

    rows = [row(True, 8, 16, 0.02), row(True, 8, 64, 0.06), row(False, 16, 64, 0.02)]

    [pair] = pairs_of(rows, (20,))

    assert pair.gain == pytest.approx((64 / 16) / (16 / 8))


def test_verdicts_are_counted_beyond_a_tenth_only() -> None:
    def foreseen(measured: float, low: float, ratio: float, high: float) -> Foreseen:
        pair = Pair(KIND, 20.0, 1.0, measured)
        return Foreseen(pair, Gain(ratio, low, high), "engine", MEASURED, MEASURED, 1)

    found = score(
        5,
        [
            foreseen(1.5, 1.2, 1.5, 1.8),
            foreseen(0.5, 0.4, 0.6, 0.9),
            foreseen(0.6, 1.1, 1.3, 1.5),
            foreseen(1.05, 0.8, 0.9, 1.0),
            foreseen(2.0, 0.8, 1.2, 2.0),
        ],
    )

    assert (found.decided, found.clear, found.right, found.winners) == (4, 3, 2, 1)
    assert (found.losers, found.losers_named) == (2, 1)


def test_the_measured_pairs_are_as_listed() -> None:
    from pathlib import Path

    pairs = read_pairs(Path("tests/data/aiconfigurator/separation_pairs.csv"))

    assert len(pairs) == 21
    assert sum(pair.gain < 0.9 for pair in pairs) == 3
    assert all(math.isfinite(pair.gain) for pair in pairs)
