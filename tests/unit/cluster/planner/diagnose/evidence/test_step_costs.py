"""Steps against expectation: the noise of sums over a sample of steps, and steps of other sizes."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.readings import Readings
from disagg_cluster.planner.diagnose.evidence.step_costs import (
    fitted_by_kind,
    has_usual_limit,
    sampled_deviation,
)

CALM = np.tile([0.02, -0.02], 8)


def test_outlying_blocks_of_one_engine_widen_the_deviation_of_all_its_peers() -> None:
    levels = np.stack([CALM, CALM, CALM, CALM])
    levels[0, [3, 7, 12]] += 0.4

    wild, alone = sampled_deviation(levels, np.array([0, 0, 0, 1]))[[1, 3]]

    assert alone == pytest.approx(0.04 / np.sqrt(2))
    assert wild > 2 * alone


def test_a_single_change_does_not_widen_the_deviation() -> None:
    changed = CALM + np.where(np.arange(16) >= 11, 0.7, 0.0)

    assert sampled_deviation(changed[None], np.array([0])) == pytest.approx(0.04 / np.sqrt(2))


def test_engines_without_steps_have_no_deviation() -> None:
    assert sampled_deviation(np.full((2, 9), np.nan), np.array([0, 1])) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize(
    ("limits", "usual"),
    [
        ([2048.0, 66_000.0], [True, False]),
        ([8192.0, 8192.0, 2048.0], [True, True, False]),
        ([2048.0, 2560.0, np.nan], [True, True, True]),
    ],
)
def test_an_engine_whose_steps_may_be_of_another_size_is_unlike_its_peers(
    limits: list[float], usual: list[bool]
) -> None:
    values = np.tile(np.array(limits)[:, None], (1, 3))
    values[:, 0] *= 10.0
    readings = Readings(
        tuple(("c", "n", str(n)) for n in range(3)), 3, {"step_limit_tokens": values}
    )

    assert has_usual_limit(readings, np.zeros(len(limits), dtype=np.intp)).tolist() == usual
    # Alone in its group each is as usual.
    assert has_usual_limit(readings, np.arange(len(limits))).all()


def test_slow_mixed_steps_are_not_taken_for_the_contexts_that_pile_up_with_them() -> None:
    """One of four mixed engines takes twice as long for mixed steps, and holds far more."""
    rng, shape = np.random.default_rng(5), (4, 24)
    held = 20_000.0 * np.array([10.0, 1.0, 1.0, 1.0])[:, None] * rng.uniform(0.7, 1.3, shape)
    prefill, mixed, generation = (rng.uniform(0.7, 1.3, shape) * n for n in (80e3, 40.0, 500.0))
    # The slow one has hardly any steps without prompts.
    generation[0, 2:] = 0.0
    slow = np.array([2.0, 1.0, 1.0, 1.0])[:, None]
    values = {
        "kv_usage": held / 1e6,
        "kv_tokens": np.full(shape, 1e6),
        "prefill_tokens": prefill,
        "mixed_steps": mixed,
        "mixed_seconds": slow * (mixed * (0.01 + 1e-7 * held) + 5e-5 * prefill),
        "generation_steps": generation,
        "generation_seconds": generation * (0.01 + 1e-7 * held),
        "computed_tokens": prefill,
        "cached_tokens": np.full(shape, np.nan),
        "entry_count": np.full(shape, np.nan),
        "first_count": prefill / 4000.0,
    }
    readings = Readings(tuple(("c", "n", str(n)) for n in range(4)), 24, values)

    levels = fitted_by_kind(readings, np.zeros(4, dtype=np.intp), 2, "mixed")

    assert levels[0] == pytest.approx(np.log(2.0), abs=0.2)
    assert levels[1:] == pytest.approx(np.zeros((3, 12)), abs=0.05)
