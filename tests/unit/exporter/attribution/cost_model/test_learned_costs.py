"""What is saved of a cost model, and a model made of it."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.attribution.cost_model.samples import StepWork

WORKS = st.builds(
    StepWork,
    st.sampled_from([0.0, 0.0, 17.0, 300.0, 2048.0]),
    st.floats(1.0, 1e7),
    st.integers(1, 300).map(float),
    st.floats(0.0, 1e6),
)
STEPS = st.lists(st.tuples(WORKS, st.floats(1e-4, 0.5)), max_size=150)


def taught(steps: list[tuple[StepWork, float]], *, in_tokens: bool = True) -> StepCost:
    cost = StepCost(kv_in_tokens=in_tokens)
    for work, seconds in steps:
        cost.learn(work, seconds)
    return cost


@given(STEPS, STEPS, st.booleans())
def test_a_restored_cost_model_behaves_like_the_saved_one(
    steps: list[tuple[StepWork, float]], later: list[tuple[StepWork, float]], in_tokens: bool
) -> None:
    cost = taught(steps, in_tokens=in_tokens)
    restored = StepCost.restored(cost.save())

    assert restored.save() == cost.save()
    assert restored.state == cost.state
    for work, seconds in later:
        assert restored.expect(work) == cost.expect(work)
        assert restored.prefill_share(work) == cost.prefill_share(work)
        cost.learn(work, seconds)
        restored.learn(work, seconds)
    assert restored.state == cost.state
    assert restored.save() == cost.save()


def test_a_model_restored_between_two_fits_has_the_saved_share_error() -> None:
    draw, cost = Random(1), StepCost()
    for _ in range(399):
        prefill, decode = draw.choice([(0, 20), (300, 0), (900, 30)])
        work = StepWork(prefill, prefill * 100.0, decode * draw.random() + 1, decode * 50.0)
        cost.learn(work, (0.01 + prefill * 1e-5) * draw.uniform(0.8, 1.2))
    saved = cost.save()

    assert saved.next_fit > sum(saved.steps)  # the cells are newer than the fit
    assert cost.state.share_error_ratio
    assert StepCost.restored(saved).state == cost.state


def test_a_lighter_model_divides_the_same() -> None:
    works = [StepWork(n * 7.0, n * 900.0, n % 50 + 1.0, n * 40.0) for n in range(1, 400)]
    saved = taught([(work, 0.01 + work.prefill_tokens * 1e-5) for work in works]).save()

    lighter = saved.lighter()

    assert 0 < len(lighter.cells) <= len(saved.cells) // 2
    for work in works[:20]:
        shares = [StepCost.restored(each).prefill_share(work) for each in (saved, lighter)]
        assert shares[0] == shares[1] is not None
    assert StepCost.restored(lighter).state == StepCost.restored(saved).state


CELL = (1, 2, 3, 1.0, 10.0, 55.0, 2.0, 100.0, 0.01)
KNOWN = LearnedCost(
    kv_in_tokens=True,
    lines=(False, False, False, (1.0, 2.0, 3.0), (1.0, 2.0, 3.0)),
    pace=(1.0, 1.0),
    fits=1,
    next_fit=40,
    reach_tokens=24.0,
    steps=(10, 20, 3),
    residuals=(0.1, 0.1, 0.1),
    now=1.5,
    doubt=(0.3, -0.1, 0.02, 0.03, 0.5, ((0, 0.001, 0.0), (10, 0.02, 0.001))),
    cells=(CELL,),
)


@pytest.mark.parametrize(
    "change",
    [
        {"pace": (math.nan, 1.0)},
        {"pace": (-1.0, 1.0)},
        {"steps": (-1, 0, 0)},
        {"next_fit": 2**40},
        {"reach_tokens": math.inf},
        {"residuals": (0.0, 2.0, 0.0)},
        {"now": 0.0},
        {"lines": (False, False, False, (1.0,), (1.0, 2.0, 3.0))},
        {"lines": (False, True, False, (1.0, 2.0, 3.0), (1.0, 2.0, 3.0))},
        {"lines": (False, False, False, (1e-309, 2.0, 3.0), (1.0, 2.0, 3.0))},
        {"lines": (False, False, False, (-1.0, 2.0, 3.0), (1.0, 2.0, 3.0))},
        {"lines": (False, False, True, (1.0, 2.0, 3.0), (1.0, 2.0, 3.0))},
        {"kv_in_tokens": False},
        {"doubt": (math.nan, 0.0, 0.0, 0.0, 0.0, ())},
        {"doubt": (0.0, 0.0, -0.1, 0.0, 0.0, ())},
        {"doubt": (0.0, 0.0, 0.0, 0.0, 0.0, ((12, 0.1, 0.1),))},
        {"doubt": (0.0, 0.0, 0.0, 0.0, 0.0, ((1, 0.1, 0.1), (1, 0.1, 0.1)))},
        {"doubt": (0.0, 0.0, 0.0, 0.0, 0.0, ((1, math.inf, 0.1),))},
        {"cells": (CELL, CELL)},
        {"cells": tuple((n, *CELL[1:]) for n in range(1201))},
        {"cells": ((*CELL[:3], 0.0, *CELL[4:]),)},
        {"cells": ((*CELL[:8], 1e300),)},
        {"cells": ((*CELL[:4], math.nan, *CELL[5:]),)},
        {"cells": ((10**6, *CELL[1:]),)},
        {"cells": ((*CELL[:4], 0.0, 55.0, 0.0, 100.0, 0.01),)},
    ],
    ids=str,
)
def test_invalid_saved_costs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        replace(KNOWN, **change)  # type: ignore[arg-type]
