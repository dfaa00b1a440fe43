from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.compare.equal_load import EqualLoad
from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats


def span(seed: int, steps: int, load: float) -> SpanMinutes:
    """Tokens follow requests exactly, the number of GPUs is constant."""
    rng = np.random.default_rng(seed)
    requests = load * rng.lognormal(0, 0.1, steps)
    prompt = requests * 500 * rng.lognormal(0, 0.05, steps)
    none, gpus = np.full(steps, np.nan), np.full(steps, 8.0)
    return SpanMinutes(60.0, requests, prompt, prompt / 5, gpus, none, none, none)


def prompt_tokens_per_gpu(span: SpanMinutes, weights: Floats) -> Floats:
    found: Floats = (weights @ span.prompt_tokens) / (weights @ span.gpus)
    return found


def equal_load(steps: int) -> EqualLoad:
    weights = np.full(steps, 1 / steps)
    spans = (span(1, steps, 10.0), span(2, steps, 11.0))
    return EqualLoad.between(prompt_tokens_per_gpu, spans, (weights, weights))


def test_the_elasticities_of_a_measure_are_learned_from_two_spans() -> None:
    """Prompt tokens on the same GPUs are in proportion to both requests and their length."""
    found = equal_load(240)

    assert found.elasticities == pytest.approx([1.0, 1.0], abs=1e-3)
    assert found.difference[0] == pytest.approx(np.log(1.1), abs=0.03)


def test_three_quarters_of_an_hour_teach_no_elasticity_and_leave_the_difference_open() -> None:
    found = equal_load(45)

    assert not found.elasticities.any()
    low, high = found.wider(np.zeros(2), 1.0)
    assert [low, high] == pytest.approx(
        1.645 * np.linalg.norm(found.difference) * np.array([-1, 1])
    )
