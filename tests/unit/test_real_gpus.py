"""Our models on others' measurements of real GPUs: `make bench-real` covers all of them."""

from __future__ import annotations

import random
from statistics import median

import pytest
from bench.real import __main__ as bench_real
from bench.real import shares, steps
from bench.real.engines import MEASURED, PricedLoad
from bench.real.measured import SHAPES, MeasuredSteps, Shape

from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_exporter.capacity.curves.curve import Curve
from disagg_exporter.capacity.curves.limits import find_batch


def test_steps_of_a_b200_are_predicted_as_well_as_by_nvidias_regression() -> None:
    """Its error is 12.74 % on the same steps; steps of equal work vary by 12 %."""
    foresight = steps.ours()

    assert foresight.error_ratio <= 1.02 * 0.1274
    assert foresight.sum_ratio == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_measured_mixed_batch_is_not_the_sum_of_its_parts(shape: object) -> None:
    costs = MeasuredSteps(shape)  # type: ignore[arg-type] # parametrized

    def seconds(prompt: int, requests: int) -> float:
        work = BatchWork(prompt, prompt * prompt // 2, prompt, requests, requests * 1024)
        return costs.price(work).seconds

    apart = seconds(1024, 0) + seconds(0, 128) - seconds(0, 0)
    assert abs(seconds(1024, 128) / apart - 1) > 0.1


@pytest.mark.parametrize(
    ("model", "traffic", "step_tokens"),
    [
        ("qwen3-32b", (3000, 300), 2048),
        ("qwen3-32b", (3000, 300), 512),
        ("llama-3.1-8b", (1500, 60), 2048),
    ],
)
def test_shares_of_measured_mixed_batches_are_within_their_stated_error(
    model: str, traffic: tuple[float, float], step_tokens: int
) -> None:
    """A model without costs for decoding beside a prompt was 24 points off on the first load.

    On the second, prices that differ widely explain the steps alike; one of them is 11 points off.
    """
    load = PricedLoad(MEASURED, model, traffic, step_tokens=step_tokens)
    scores = shares.measure(load, learned=3000, taken=4000)

    for score in scores:
        assert abs(score.error) <= score.half_width
        assert abs(score.error) <= 5 or not score.trusted
        assert score.interference_error is None or abs(score.interference_error) <= 2


@pytest.mark.parametrize("arguments", [["knees"], ["--part", "x"], ["--part"]])
def test_the_bench_refuses_unknown_arguments(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It exits before it measures for minutes, and prints no result."""
    with pytest.raises(SystemExit) as refused:
        bench_real.main(arguments)

    assert refused.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_batch_limit_extrapolated_four_times_is_not_too_large(shape: Shape) -> None:
    """On measured decode steps; until all experts are read, those of experts are far too small."""
    costs, ratios = MeasuredSteps(shape), []
    for read in (512, 2048, 8192):
        for true in (16, 32, 64, 128):
            dice, curve = random.Random(f"{read} {true}"), Curve()
            for step in range(1500):
                requests = 1 + step % (true // 4)
                seconds = costs.price(BatchWork(0, 0, 0, requests, requests * read)).seconds
                curve.add(requests, seconds * max(dice.gauss(1, 0.05), 0.1), 1)
            target = costs.price(BatchWork(0, 0, 0, true, true * read)).seconds
            limit = find_batch(curve.points(1), target)
            assert limit is not None
            assert limit.requests is not None
            ratios.append(limit.requests / true)

    assert max(ratios) <= 1.1
    assert median(ratios) >= (0.4 if shape.experts else 0.6)
