"""bench-rebalance's rules and figures, and two hours of the bench."""

from __future__ import annotations

import numpy as np
import pytest
from bench.plan.days import HISTORY_DAYS, MINUTES
from bench.plan.profile import Profile, worker_options
from bench.plan.replay import replay
from bench.plan.truth import DRAIN_MINUTES, LEAD_MINUTES, ModelTruth
from bench.rebalance.comparison import (
    ACT,
    BARS,
    BEGUN,
    HETERO,
    LIMITS,
    TOKENS,
    Lived,
    figures_of,
)
from bench.rebalance.loads import ENGINES, LoadKind, make_load
from bench.rebalance.rules import Acting

_MINUTES = 120


def test_a_load_is_reproducible_and_shifts_only_if_its_kind_does() -> None:
    def prompts(seed: int, kind: LoadKind) -> np.typing.NDArray[np.float64]:
        day = make_load(seed, kind, 10)
        lengths: np.typing.NDArray[np.float64] = day.prompt_tokens / day.requests
        return lengths[HISTORY_DAYS * MINUTES // 2 :: 60]

    np.testing.assert_array_equal(prompts(3, LoadKind.SHIFTING), prompts(3, LoadKind.SHIFTING))
    steady, shifting = prompts(3, LoadKind.TOGETHER), prompts(3, LoadKind.SHIFTING)
    assert steady.std() / steady.mean() < 0.1 < shifting.std() / shifting.mean()


def test_a_moved_engine_is_out_of_service_while_it_drains_and_starts() -> None:
    """Under any rule; a freed GPU is available a minute later."""
    day = make_load(0, LoadKind.CONSTANT, _MINUTES)
    seen: list[tuple[int, int]] = []

    class _OneMove:
        def desired(self, minute: int, models: list[ModelTruth]) -> tuple[tuple[int, int]]:
            (model,) = models
            seen.append((model.prefill.serving, model.decode.serving))
            return ((3, 5),) if minute >= 10 else ((4, 4),)

    replay([day], _OneMove(), ((4, 4),), 30, ENGINES)  # type: ignore[arg-type] # a list is a sequence

    assert seen.index((3, 4)) == 11
    assert seen.index((3, 5)) == 11 + DRAIN_MINUTES + 1 + LEAD_MINUTES


def test_rebalancing_a_shifting_load_stays_within_the_move_and_gpu_budget() -> None:
    day = make_load(0, LoadKind.ALTERNATING, _MINUTES)
    acting = Acting(Profile([day], worker_options([day])), LIMITS)
    found = replay([day], acting, ((4, 4),), _MINUTES, ENGINES)

    assert 1 <= len(acting.moves) <= 2 * LIMITS.moves_per_hour
    assert found.gpu_hours <= ENGINES * _MINUTES / 60 + 1e-9


def lived(act: int, half: int, other: int, moves: tuple[int, ...] = ()) -> Lived:
    over = {ACT: act, "static 4+4": half, "static 5+3": other}
    rules = {f"{HETERO} 0.5": 50, f"{TOKENS} 0.5": 40, f"{TOKENS} over all": 25}
    return Lived(0, LoadKind.SHIFTING, {**over, **rules, BEGUN: 12}, moves)


def test_figures_take_the_best_of_each_rule_and_the_worst_load() -> None:
    figures = figures_of([lived(10, 100, 20), lived(9, 8, 30, (0, 20, 59, 61))], [lived(0, 0, 0)])

    assert [figures[bar] for bar in BARS] == [
        19 / 108,
        19 / 100,
        19 / 50,
        9 / 8,
        3 / LIMITS.moves_per_hour,
        0.0,
    ]
    assert figures["loads best served by 4+4"] == 1.0
    assert figures["worst of a load / the same begun at 4+4"] == 10 / 12
    assert figures["loads over 1.05 of their best static"] == 1.0
    assert figures["most minutes a load is beyond that"] == pytest.approx(9 - 1.05 * 8)
