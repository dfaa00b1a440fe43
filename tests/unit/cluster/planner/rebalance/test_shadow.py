"""Time over target of the actual split and of the shadow that follows advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.move_gain import MoveCost, MoveGain
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.shadow import ObservedNeeds, ShadowAccounting
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

HALF = RoleSplit(4, 4)
COST = MoveCost(450.0)
BLOCK = 300.0


def observed(needs: Sequence[tuple[int, int]], start_seconds: float = 0.0) -> ObservedNeeds:
    prefill, decode = (np.array([of], dtype=np.int64) for of in zip(*needs, strict=True))
    return ObservedNeeds(SplitNeeds(prefill, decode, BLOCK), start_seconds)


def to_decode(split: RoleSplit, _log: MoveLog) -> Move | Stay:
    return Move(Role.PREFILL, Role.DECODE, MoveGain(1, split.moved(1), 1.0, 1.0, 450.0))


def stay(_split: RoleSplit, _log: MoveLog) -> Move | Stay:
    return Stay("no move pays")


def accounting() -> ShadowAccounting:
    return ShadowAccounting(HALF, HALF, 0.0, 0.0)


def test_a_move_gains_the_time_after_it_and_costs_its_downtime() -> None:
    """3 + 4 for seven and a half minutes, then 3 + 5, where 4 + 4 lacks a decode engine."""
    moved = accounting().updated(HALF, to_decode, COST, 0.0)
    found = moved.with_load(observed([(3, 5)] * 4))

    assert (moved.shadow, moved.meanwhile, moved.moves) == (RoleSplit(3, 5), RoleSplit(3, 4), 1)
    assert found.over_target_seconds == pytest.approx(4 * BLOCK)
    assert found.shadow_over_target_seconds == pytest.approx(450.0)
    assert found.gained_seconds == pytest.approx(4 * BLOCK - 450.0)


def test_a_wrong_move_counts_as_a_loss() -> None:
    moved = accounting().updated(HALF, to_decode, COST, 0.0)

    assert moved.with_load(observed([(4, 4)] * 2)).gained_seconds == pytest.approx(-2 * BLOCK)


def test_the_next_move_begins_only_after_the_downtime() -> None:
    asked: list[bool] = []

    def asking(split: RoleSplit, log: MoveLog) -> Move | Stay:
        asked.append(log.under_way)
        return stay(split, log)

    moved = accounting().updated(HALF, to_decode, COST, 0.0)
    for now in (300.0, 450.0):
        moved = moved.updated(HALF, asking, COST, now)

    assert asked == [True, False]
    assert (moved.meanwhile, moved.log.tried_seconds) == (None, 450.0)


DAY = 86_400.0


def test_a_move_of_the_shadow_is_over_when_the_clock_is_set_back() -> None:
    moved = replace(accounting(), accounted_seconds=DAY, since_seconds=DAY)
    moved = moved.updated(HALF, to_decode, COST, DAY).until(600.0, 540.0)
    later = moved.updated(HALF, stay, COST, 600.0)

    assert (later.since_seconds, later.accounted_seconds) == (600.0, 540.0)
    assert (later.shadow, later.meanwhile, later.log.under_way) == (RoleSplit(3, 5), None, False)


def test_a_lasting_change_is_noticed_although_the_clock_is_set_back() -> None:
    other = RoleSplit(6, 4)
    changed = accounting().updated(other, stay, COST, DAY)
    for now in (0.0, 899.0):
        changed = changed.until(now, now).updated(other, stay, COST, now)
        assert changed.shadow == HALF

    assert changed.until(900.0, 900.0).updated(other, stay, COST, 900.0).shadow == other


def test_times_that_are_over_are_kept() -> None:
    moved = accounting().updated(HALF, to_decode, COST, 0.0)

    assert moved.until(300.0, 300.0) == moved


def test_an_engine_absent_for_minutes_leaves_the_shadow_unchanged() -> None:
    moved = accounting().updated(HALF, to_decode, COST, 0.0).updated(HALF, stay, COST, 600.0)
    away = moved.updated(RoleSplit(4, 3), to_decode, COST, 700.0)
    back = away.updated(HALF, stay, COST, 1000.0)

    assert away.shadow == back.shadow == RoleSplit(3, 5)
    assert (away.actual, back.actual, back.moves) == (RoleSplit(4, 3), HALF, 1)


def test_a_lasting_change_of_engines_restarts_the_shadow() -> None:
    moved = accounting().updated(HALF, to_decode, COST, 0.0)
    for now in (300.0, 900.0, 1200.0):
        moved = moved.updated(RoleSplit(6, 4), to_decode, COST, now)

    assert (moved.shadow, moved.meanwhile, moved.log) == (RoleSplit(6, 4), None, MoveLog())
    assert moved.updated(RoleSplit(6, 4), to_decode, COST, 1500.0).shadow == RoleSplit(5, 5)
