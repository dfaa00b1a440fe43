"""What steps cost, from sums over stretches of them."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_exporter.attribution.pages.window_cost import Columns, Steps, WindowCosts, fit

DENSE = WindowCosts(step=0.02, request=1e-4, token=7e-5)
EXPERTS = WindowCosts(step=0.002, request=5e-5, token=1e-5, experts=(0.004, 0.004))


def _stretches(count: int, seed: int = 5) -> Steps:
    dice = np.random.default_rng(seed)
    steps = dice.uniform(50, 400, count)
    mixed = steps * dice.uniform(0, 0.3, count)
    tokens = dice.uniform(100, 2000, (count, 1)) * np.array([0.5, 2.0])
    parts = np.array([2 / 3, 1 / 3])
    return Steps(steps - mixed, mixed, dice.uniform(1, 60, count), tokens, parts)


def _one(requests: float, prompt_tokens: float) -> Steps:
    one = np.ones(1)
    return Steps(0 * one, one, requests * one, np.full((1, 1), prompt_tokens), one)


def _busy(costs: WindowCosts, steps: Steps, noise: float = 0.02) -> Columns:
    dice = np.random.default_rng(9)
    return costs.busy_seconds(steps) * dice.normal(1, noise, len(steps.plain))


@pytest.mark.parametrize("costs", [DENSE, EXPERTS])
def test_known_costs_are_recovered(costs: WindowCosts) -> None:
    steps = _stretches(240)

    found = fit(steps, _busy(costs, steps), np.full(240, 5.0), None)

    for requests, tokens in ((2.0, 0.0), (50.0, 0.0), (20.0, 150.0), (20.0, 3000.0)):
        told = (np.array([requests]), np.array([tokens]))
        assert found.price(*told) == pytest.approx(costs.price(*told), rel=0.05)
    assert bool(found.experts) is bool(costs.experts)


def test_a_common_drift_of_all_steps_is_not_fitted_as_cost() -> None:
    steps, seconds = _stretches(240), np.full(240, 5.0)
    drift = 1 + 0.1 * np.sin(np.arange(240) / 20)

    found = fit(steps, _busy(DENSE, steps) * drift, seconds, None)

    assert found.step == pytest.approx(DENSE.step, rel=0.03)
    assert found.token == pytest.approx(DENSE.token, rel=0.03)


def test_a_mixed_step_is_divided_by_the_mean_marginal_cost_of_each_phase() -> None:
    """Alone the prompt takes 70 ms and decode 22 ms; nothing 20 ms; both 71.4 ms."""
    prefill, decode = DENSE.divide(_one(requests=20, prompt_tokens=1000))

    adds_prefill, adds_decode = (50 + 49.4) / 2, (2 + 1.4) / 2
    assert prefill[0] == pytest.approx(0.0714 * adds_prefill / (adds_prefill + adds_decode))
    assert prefill[0] + decode[0] == pytest.approx(0.0714)


@pytest.mark.parametrize(("requests", "share"), [(0.0, 1.0), (300.0, 0.25)])
def test_a_step_of_constant_cost_is_divided_by_tokens(requests: float, share: float) -> None:
    constant = WindowCosts(step=0.02, request=0.0, token=0.0)

    prefill, decode = constant.divide(_one(requests, prompt_tokens=100))

    assert prefill[0] / (prefill[0] + decode[0]) == pytest.approx(share)


def test_zero_steps_have_zero_cost() -> None:
    zero = np.zeros(1)

    prefill, decode = DENSE.divide(Steps(zero, zero, zero, np.zeros((1, 1)), np.ones(1)))

    assert (prefill[0], decode[0]) == (0.0, 0.0)
