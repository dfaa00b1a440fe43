"""The two books: what was, and what following advice would have brought."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from disagg_cluster.planner.rebalance.decision import Move, Stay
from disagg_cluster.planner.rebalance.move_gain import MoveCost, MoveGain
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.shadow import CameNeeds, ShadowBooks
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

HALF = RoleSplit(4, 4)
COST = MoveCost(450.0)
BLOCK = 300.0


def came(needs: Sequence[tuple[int, int]], start_seconds: float = 0.0) -> CameNeeds:
    prefill, decode = (np.array([of], dtype=np.int64) for of in zip(*needs, strict=True))
    return CameNeeds(SplitNeeds(prefill, decode, BLOCK), start_seconds)


def to_decode(split: RoleSplit, _log: MoveLog) -> Move | Stay:
    return Move(Role.PREFILL, Role.DECODE, MoveGain(1, split.moved(1), 1.0, 1.0, 450.0))


def stay(_split: RoleSplit, _log: MoveLog) -> Move | Stay:
    return Stay("no move pays")


def books() -> ShadowBooks:
    return ShadowBooks(HALF, HALF, 0.0, 0.0)


def test_a_move_brings_the_time_after_it_and_costs_the_time_under_way() -> None:
    """Seven and a half minutes of 3 + 4 and then 3 + 5, where 4 + 4 lacks a decode engine."""
    moved = books().looked_at(HALF, to_decode, COST, 0.0)
    found = moved.settled(came([(3, 5)] * 4))

    assert (moved.shadow, moved.meanwhile, moved.moves) == (RoleSplit(3, 5), RoleSplit(3, 4), 1)
    assert found.over_target_seconds == pytest.approx(4 * BLOCK)
    assert found.shadow_over_target_seconds == pytest.approx(450.0)
    assert found.gained_seconds == pytest.approx(4 * BLOCK - 450.0)


def test_a_move_that_was_wrong_is_told_as_a_loss() -> None:
    moved = books().looked_at(HALF, to_decode, COST, 0.0)

    assert moved.settled(came([(4, 4)] * 2)).gained_seconds == pytest.approx(-2 * BLOCK)


def test_a_move_ends_after_its_downtime_and_only_then_another_begins() -> None:
    asked: list[bool] = []

    def asking(split: RoleSplit, log: MoveLog) -> Move | Stay:
        asked.append(log.under_way)
        return stay(split, log)

    moved = books().looked_at(HALF, to_decode, COST, 0.0)
    for now in (300.0, 450.0):
        moved = moved.looked_at(HALF, asking, COST, now)

    assert asked == [True, False]
    assert (moved.meanwhile, moved.log.ended_seconds) == (None, 450.0)


def test_an_engine_that_is_away_for_minutes_leaves_the_shadow_as_it_is() -> None:
    moved = books().looked_at(HALF, to_decode, COST, 0.0).looked_at(HALF, stay, COST, 600.0)
    away = moved.looked_at(RoleSplit(4, 3), to_decode, COST, 700.0)
    back = away.looked_at(HALF, stay, COST, 1000.0)

    assert away.shadow == back.shadow == RoleSplit(3, 5)
    assert (away.actual, back.actual, back.moves) == (RoleSplit(4, 3), HALF, 1)


def test_engines_that_come_or_go_for_good_begin_the_shadow_anew() -> None:
    moved = books().looked_at(HALF, to_decode, COST, 0.0)
    for now in (300.0, 900.0, 1200.0):
        moved = moved.looked_at(RoleSplit(6, 4), to_decode, COST, now)

    assert (moved.shadow, moved.meanwhile, moved.log) == (RoleSplit(6, 4), None, MoveLog())
    assert moved.looked_at(RoleSplit(6, 4), to_decode, COST, 1500.0).shadow == RoleSplit(5, 5)
