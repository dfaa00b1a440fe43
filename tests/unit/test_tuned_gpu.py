"""What `tune prefill` finds on steps of a real vLLM on an H200 while it was tuned.

`tuned.csv.gz` has their lengths by CUDA events. A step that began while nothing ran held the GPU
for as long as its kernels were launched, too; one that was launched while another ran did not.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
from bench.real import recorded

from disagg_cluster.tune.completions import UniquePrompts
from disagg_cluster.tune.knee_search import KneeEstimate, knee_estimate
from disagg_cluster.tune.prefill_prober import PrefillProber, StepShape, TimeSource
from disagg_cluster.tune.prefill_tuning import PrefillTuner
from disagg_cluster.tune.probed import SizeProbe, TimedSteps
from support.probed_engines import FakeEngine

_REST_US = 3_000
# The engine's host launched the kernels of a prompt of 725 tokens in 31 ms.
_LAUNCH_SECONDS = 0.02


@cache
def steps(*, rested: bool) -> dict[int, list[float]]:
    """Seconds of steps of prompts alone, by tokens."""
    with gzip.open(recorded.DATA / "tuned.csv.gz", "rt") as lines:
        rows = [row for row in csv.DictReader(lines) if row["part"] == "tune-prefill"]
    found = defaultdict(list)
    for before, row in pairwise(rows):
        since_us = int(row["t_us"]) - int(before["t_us"]) - int(before["step_us"])
        if (since_us > _REST_US) == rested:
            found[int(row["context_tokens"])].append(int(row["step_us"]) / 1e6)
    return found


def seconds_of(recorded_steps: dict[int, list[float]]) -> Callable[[int], float]:
    sizes = sorted(recorded_steps)
    seconds = [median(recorded_steps[size]) for size in sizes]

    def price(tokens: int) -> float:
        # Below the smallest that was recorded, a step costs as much.
        return float(np.interp(tokens, sizes, seconds))

    return price


def engine() -> FakeEngine:
    return FakeEngine(
        seconds_of(steps(rested=False)),
        schedules_ahead=True,
        launch_seconds=_LAUNCH_SECONDS,
        resting_price=seconds_of(steps(rested=True)),
    )


def true_knee() -> KneeEstimate:
    """The knee of the steps that were launched while another ran, as users' are."""
    probes = (SizeProbe(size, tuple(each)) for size, each in sorted(steps(rested=False).items()))
    found = knee_estimate(TimedSteps(tuple(probes)).points)
    assert found is not None
    return found


def test_the_knee_is_that_of_steps_that_do_not_wait_for_their_launch() -> None:
    tuned = engine()
    prober = PrefillProber(tuned, UniquePrompts(random.Random(3)), now=lambda: tuned.now)

    found = PrefillTuner(prober, [512], 8192).run(lambda _: None)

    assert found.source is TimeSource.TOKENS
    estimate, true = found.lengths[0].estimate, true_knee()
    assert estimate is not None
    assert estimate.knee_tokens == pytest.approx(true.knee_tokens, rel=0.15)
    assert estimate.best_tokens_per_second == pytest.approx(true.best_tokens_per_second, rel=0.05)


def test_a_single_prompt_is_timed_without_its_launch() -> None:
    tuned = engine()
    prober = PrefillProber(tuned, UniquePrompts(random.Random(3)), now=lambda: tuned.now)
    prober.notice_overlap(StepShape(2, 4096))

    probe = prober.probe(StepShape(1, 725))

    assert probe is not None
    assert median(probe.seconds) == pytest.approx(tuned.price(725), rel=0.01)
    assert median(probe.seconds) < 0.7 * seconds_of(steps(rested=True))(725)
