from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.doubt import (
    INTERFERENCE_ERROR_LIMIT_RATIO,
    Doubt,
    Figures,
)
from disagg_exporter.attribution.cost_model.samples import StepWork

Price = Callable[[StepWork], float]


def _roofline(work: StepWork) -> float:
    tokens = work.prefill_tokens + work.decode_requests
    return 0.0005 + max(
        2.5e-5 * tokens + 1e-9 * work.prefill_attended, 0.006 + 4e-8 * work.decode_kv
    )


def _dear_beside_prompts(work: StepWork) -> float:
    """Mixed batches whose kernel decodes at half the speed, as FlashAttention-2's does."""
    apart = 0.006 + 2.5e-5 * work.prefill_tokens + 1e-4 * work.decode_requests
    slow = 2 if work.prefill_tokens else 1
    return apart + slow * 1e-7 * work.decode_kv


def _works(count: int, budget: int = 0, seed: int = 1, mixed: float = 0.4) -> Iterator[StepWork]:
    """Work of all kinds; with a `budget` every step is mixed and has so many tokens."""
    rng = random.Random(seed)
    for _ in range(count):
        requests = (budget and rng.randint(58, 64)) or rng.randint(4, 64)
        decode = (float(requests), float(requests * rng.randint(900, 1100)))
        tokens = float(budget - requests if budget else rng.randint(100, 2000))
        prefill = (tokens, tokens * (tokens / 2 + rng.randint(0, 1000)))
        kind = rng.random()
        if budget or kind < mixed:
            yield StepWork(*prefill, *decode)
        elif kind < mixed + 0.1:
            yield StepWork(*prefill)
        else:
            yield StepWork(0.0, 0.0, *decode)


def _taught(price: Price, count: int = 5000, **how: float) -> StepCost:
    cost, rng = StepCost(), random.Random(1)
    for work in _works(count, **how):  # type: ignore[arg-type] # its own keywords
        cost.learn(work, price(work) * rng.gauss(1, 0.1))
    return cost


def _share(price: Price, work: StepWork) -> float:
    empty, both = price(StepWork()), price(work)
    prefill, decode = price(StepWork(*work[:2])), price(StepWork(0.0, 0.0, *work[2:]))
    return 0.5 + (prefill - decode) / (2 * (both - empty))


@pytest.mark.parametrize("price", [_roofline, _dear_beside_prompts])
def test_the_prefill_share_is_within_its_error_estimate(price: Price) -> None:
    cost = _taught(price)
    error = cost.state.share_error_ratio

    said = true = seconds = 0.0
    for work in _works(500, seed=3):
        length = price(work)
        seconds += length
        if work.prefill_tokens and work.decode_requests:
            said += length * (cost.prefill_share(work) or 0.0)
            true += length * _share(price, work)

    assert cost.state.trusted
    assert error is not None
    assert abs(said - true) / seconds <= error <= 0.05


def test_steps_that_all_fill_the_token_budget_leave_the_share_untrusted() -> None:
    """Prefill and decode tokens are observed only together: their costs cannot be separated."""
    cost = _taught(_dear_beside_prompts, 3000, budget=512)
    state = cost.state

    assert state.residual_ratio is not None
    assert state.residual_ratio < 0.15
    assert state.divides
    assert not state.trusted
    assert (state.share_error_ratio or 0.0) > 0.05


def test_an_engine_with_only_mixed_steps_is_untrusted_and_within_its_share_error() -> None:
    """No decode-only step was observed: the cost of decode alone is not known."""
    cost = _taught(_dear_beside_prompts, 3000, mixed=1.0)
    error = cost.state.share_error_ratio

    works = list(_works(500, seed=3, mixed=1.0))
    lengths = [_dear_beside_prompts(work) for work in works]
    said = sum(t * (cost.prefill_share(w) or 0.0) for t, w in zip(lengths, works, strict=True))
    true = sum(t * _share(_dear_beside_prompts, w) for t, w in zip(lengths, works, strict=True))

    assert not cost.state.trusted
    assert error is not None
    assert abs(said - true) / sum(lengths) <= error


def test_an_engine_without_mixed_steps_has_no_share_error_and_no_interference() -> None:
    state = _taught(_roofline, 2000, mixed=0.0).state

    assert state.trusted
    assert state.share_error_ratio == 0.0
    assert state.interference_error_ratio is None


def test_the_interference_of_decode_beside_a_prompt_is_learned() -> None:
    cost = _taught(_dear_beside_prompts)
    work = StepWork(1000.0, 1000.0 * 700, 40.0, 40.0 * 1000)

    parts = cost.parts(work)

    assert cost.state.interference_error_ratio is not None
    assert parts is not None
    lost = 1e-7 * work.decode_kv / _dear_beside_prompts(work)
    assert parts.interference_ratio == pytest.approx(lost, abs=0.03)


def test_interference_is_unknown_before_300_mixed_steps() -> None:
    """A chat's on an H200 was stated 3.5 points off after 184 of them."""
    few, enough = (_taught(_dear_beside_prompts, n, mixed=0.2).state for n in (1000, 2000))

    assert few.trusted
    assert few.interference_error_ratio is None
    assert enough.interference_error_ratio is not None


def test_interference_that_no_price_explains_is_unknown() -> None:
    """No term makes a prompt's tokens dearer beside decode: the fit finds a quarter of the loss."""

    def dear_mixtures(work: StepWork) -> float:
        mixed = work.prefill_tokens and work.decode_requests
        apart = 0.004 + 5e-5 * work.prefill_tokens + 2e-4 * work.decode_requests
        return apart * (1.2 if mixed else 1.0)

    state = _taught(dear_mixtures, mixed=0.6).state

    assert state.trusted
    assert state.interference_error_ratio is None


def test_overlap_of_memory_reads_with_compute_is_negative_interference() -> None:
    parts = _taught(_roofline).parts(StepWork(300.0, 1e5, 60.0, 60.0 * 1000))

    assert parts is not None
    apart = _roofline(StepWork(300.0, 1e5)) - _roofline(StepWork())
    whole = _roofline(StepWork(300.0, 1e5, 60.0, 60.0 * 1000))
    lost = (whole - apart - _roofline(StepWork(0.0, 0.0, 60.0, 60.0 * 1000))) / whole
    assert lost < -0.05
    assert parts.interference_ratio == pytest.approx(lost, abs=0.04)


@pytest.mark.parametrize("interference", [0.0, 0.4, -0.4])
def test_interference_is_known_to_three_points_of_step_time_however_large(
    interference: float,
) -> None:
    known = Doubt(Figures(0.5, interference), Figures(0.0, INTERFERENCE_ERROR_LIMIT_RATIO), 0.5)
    unsure = known._replace(error=Figures(0.0, INTERFERENCE_ERROR_LIMIT_RATIO + 0.01))

    assert known.knows_interference(1.0, 0.0)
    assert not unsure.knows_interference(1.0, 0.0)
    # A pace that no clock explains may be the cost of mixing.
    assert not known.knows_interference(1.3, 0.0)
    # So may predictions of mixed steps that are off by a hundredth of their time.
    assert not known.knows_interference(1.0, 0.01)


def test_costs_of_reference_steps_are_within_their_error() -> None:
    state = _taught(_roofline).state
    points = {step.point: step for step in state.reference_steps}

    assert 5 <= len(points) == len(state.reference_steps) <= 12
    assert "prefill_4096" not in points  # more than twice the tokens of any step that was seen
    for name, work in (
        ("empty", StepWork()),
        ("prefill_1024", StepWork(1024.0, 1024.0 * 1040, 0.0, 0.0)),
        ("decode_64", StepWork(0.0, 0.0, 64.0, 64_000.0)),
    ):
        step = points[name]
        assert abs(step.seconds - _roofline(work)) <= step.error_seconds + 0.03 * step.seconds
