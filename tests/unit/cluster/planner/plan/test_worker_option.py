"""How many workers of a kind the steps of a future need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.worker_option import WorkerOption, block_needs
from disagg_exporter.model import Role
from support.plan_demands import BLOCK, NOW, PAIR, costs

BASE_MIX = RequestMix(1.0, 1.0, 1.0)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 7.0, 300.0]), st.floats(0.0, 3000.0), st.floats(0.0, 600.0)
    ),
    max_size=12,
)


def futures(steps: list[tuple[float, float, float]]) -> LoadPaths:
    """Five futures around requests, prompt and output lengths by step."""
    values = np.array(steps, dtype=np.float64).reshape(-1, 3)
    factors = np.linspace(0.5, 2.0, 5)[:, None]
    requests = values[:, 0] * factors
    return LoadPaths(NOW, BLOCK, requests, requests * values[:, 1], requests[::-1] * values[:, 2])


@settings(max_examples=40, deadline=None)
@given(STEPS)
@pytest.mark.parametrize("option", PAIR, ids=lambda option: option.role)
def test_the_need_of_a_step_does_not_depend_on_other_steps(
    option: WorkerOption, steps: list[tuple[float, float, float]]
) -> None:
    together = block_needs(option, futures(steps), BASE_MIX)

    assert isinstance(together, np.ndarray)
    assert together.shape == (5, len(steps))
    for step, values in enumerate(steps):
        alone = block_needs(option, futures([values]), BASE_MIX)
        assert isinstance(alone, np.ndarray)
        assert together[:, step].tolist() == alone[:, 0].tolist()


def test_tokens_without_requests_need_no_engine() -> None:
    silent = LoadPaths(NOW, BLOCK, np.zeros((2, 3)), np.ones((2, 3)), np.ones((2, 3)))

    for option in PAIR:
        needs = block_needs(option, silent, BASE_MIX)
        assert isinstance(needs, np.ndarray)
        assert not needs.any()


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.MIXED])
def test_requests_that_are_a_little_longer_need_few_more_engines(role: Role) -> None:
    """Noise of mean lengths would order GPUs, and release them again, at some lengths."""
    option = WorkerOption(role, costs(), Targets(0.5, 0.02))
    lengths = 1200 * 1.01 ** np.arange(30)
    requests = np.full((1, 30), 400.0)

    longer_prompts = LoadPaths(NOW, BLOCK, requests, requests * lengths, requests * 200)
    longer_outputs = LoadPaths(NOW, BLOCK, requests, requests * 1000, requests * lengths / 5)

    for load in (longer_prompts, longer_outputs):
        needs = block_needs(option, load, BASE_MIX)
        assert isinstance(needs, np.ndarray)
        growth = needs[0, 1:] / needs[0, :-1]
        assert growth.min() > 0.95
        assert growth.max() < 1.15


def test_a_longer_cached_part_changes_the_need_little_by_little() -> None:
    option = PAIR[1]
    load = futures([(300.0, 500.0, 200.0)])
    needs = []
    for cached in 8000 * 1.02 ** np.arange(15):
        found = block_needs(option, load, replace(BASE_MIX, cached_tokens=float(cached)))
        assert isinstance(found, np.ndarray)
        needs.append(float(found.sum()))

    growth = np.array(needs[1:]) / needs[:-1]
    assert growth.min() >= 1.0
    assert growth.max() < 1.06
