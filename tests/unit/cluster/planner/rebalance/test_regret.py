"""A move that measurements contradict is reverted once, and not repeated soon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.rebalance.decision import Move, Stay, decide
from disagg_cluster.planner.rebalance.limits import RebalanceLimits, RebalanceMode
from disagg_cluster.planner.rebalance.model_rebalance import ModelRebalance
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.rebalance_text import rebalance_text, rebalance_values
from disagg_cluster.planner.rebalance.regret import (
    LOOK_BACK_SECONDS,
    Regret,
    regret_of,
    why_not_again,
)
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_cluster.planner.rebalance.weighed_pools import WeighedPools
from disagg_exporter.model import Role

LIMITS = RebalanceLimits()
TO_DECODE = MoveLog().begun(0.0, Role.DECODE).ended(300.0)
NOW = 900.0
DECODE_IS_SHORT = SplitNeeds(np.full((4, 12), 2), np.full((4, 12), 7), 300.0)
WRONG = {Role.PREFILL: 1.1, Role.DECODE: 0.5}


def pools(
    split: RoleSplit, used: dict[Role, float], needs: SplitNeeds = DECODE_IS_SHORT
) -> WeighedPools:
    return WeighedPools(split, needs, MoveCost(360.0), used)


def decided(
    split: RoleSplit, log: MoveLog, used: dict[Role, float], now_seconds: float = NOW
) -> Move | Stay:
    """Decide with a capacity that says decode is always short."""
    return decide(pools(split, used), LIMITS, 9.0, log, now_seconds)


def test_a_move_that_measurements_contradict_is_reverted() -> None:
    advice = decided(RoleSplit(3, 5), TO_DECODE, WRONG)

    assert isinstance(advice, Move)
    assert (advice.role, advice.to_role, advice.undoes) == (Role.DECODE, Role.PREFILL, True)
    # By the forecast it gains nothing, but is made anyway.
    assert advice.gain.engine_seconds < 0


def test_the_text_says_that_a_move_reverts_the_last_one() -> None:
    advice = decided(RoleSplit(3, 5), TO_DECODE, WRONG)
    model = ModelRebalance("llama", "", RoleSplit(3, 5), advice, MoveCost(360.0), measured=True)

    text = rebalance_text([model], LIMITS, RebalanceMode.ADVISE)
    assert (
        "the last move is taken back: as measured prefill is short without it, and decode has room"
        in text
    )
    assert rebalance_values([model], LIMITS)[0]["takes_back"] is True


@pytest.mark.parametrize(
    ("used", "now_seconds"),
    [
        # The giver is within its targets.
        ({Role.PREFILL: 0.95, Role.DECODE: 0.5}, NOW),
        # The taker needs the engine.
        ({Role.PREFILL: 1.1, Role.DECODE: 0.8}, NOW),
        # One of them is not measured.
        ({Role.PREFILL: 1.1}, NOW),
        ({Role.DECODE: 0.5}, NOW),
        # It is too recent: measurements include time before it.
        (WRONG, 300.0 + 240.0),
        # It is too long ago.
        (WRONG, 300.0 + LOOK_BACK_SECONDS + 1),
    ],
)
def test_a_move_is_not_regretted_unless_measurements_contradict_it(
    used: dict[Role, float], now_seconds: float
) -> None:
    assert regret_of(pools(RoleSplit(3, 5), used), TO_DECODE, now_seconds) is None


def test_a_move_that_was_not_made_is_not_reverted() -> None:
    refused = MoveLog().begun(0.0, Role.DECODE).ended(1.0, done=False)

    assert regret_of(pools(RoleSplit(4, 4), WRONG), MoveLog(), NOW) is None
    assert regret_of(pools(RoleSplit(4, 4), WRONG), refused, NOW) is None
    assert regret_of(pools(RoleSplit(3, 5), WRONG), TO_DECODE, NOW) == Regret(
        Role.DECODE, Role.PREFILL
    )


def test_a_move_that_was_not_made_leaves_the_one_before_it_reversible() -> None:
    log = TO_DECODE.begun(600.0, Role.DECODE).ended(601.0, done=False)

    assert regret_of(pools(RoleSplit(3, 5), WRONG), log, 1200.0) == Regret(
        Role.DECODE, Role.PREFILL
    )
    # Its attempt may have taken an engine away for a while.
    assert regret_of(pools(RoleSplit(3, 5), WRONG), log, 700.0) is None


def test_a_log_until_a_time_has_nothing_after_it_but_the_move_under_way() -> None:
    made = TO_DECODE.begun(900.0, Role.PREFILL, undoes=True).ended(1200.0)

    assert made.until(1200.0) == made
    assert made.until(1000.0) == replace(made, tried_seconds=None, last=None, regretted={})
    assert made.until(-1.0) == MoveLog()
    assert MoveLog().begun(900.0, Role.DECODE).until(0.0).under_way


def test_failed_reversals_do_not_prolong_the_hour_of_a_move() -> None:
    log = TO_DECODE
    for begun in (900.0, 1800.0, 2700.0):
        log = log.begun(begun, Role.PREFILL, undoes=True).ended(begun + 60.0, done=False)

    last = 300.0 + LOOK_BACK_SECONDS
    assert isinstance(regret_of(pools(RoleSplit(3, 5), WRONG), log, last), Regret)
    assert regret_of(pools(RoleSplit(3, 5), WRONG), log, last + 1) is None


def test_a_pool_that_gave_back_an_engine_gets_none_until_full() -> None:
    log = TO_DECODE.begun(NOW, Role.PREFILL, undoes=True).ended(1200.0)
    room = {Role.PREFILL: 0.6, Role.DECODE: 0.85}

    assert decided(RoleSplit(4, 4), log, room, 1800.0) == Stay(
        "decode gave back an engine 10 min ago and is not full"
    )
    assert isinstance(decided(RoleSplit(4, 4), log, {**room, Role.DECODE: 0.9}, 1800.0), Move)
    half = pools(RoleSplit(4, 4), room)
    assert why_not_again(Role.DECODE, half, log, 1200.0 + LOOK_BACK_SECONDS + 1) == ""
    assert why_not_again(Role.PREFILL, half, log, 1800.0) == ""


def test_a_reversal_at_a_time_that_is_still_to_come_prevents_nothing() -> None:
    log = TO_DECODE.begun(86_400.0, Role.PREFILL, undoes=True).ended(86_700.0)

    room = pools(RoleSplit(4, 4), {Role.PREFILL: 0.6, Role.DECODE: 0.85})
    assert why_not_again(Role.DECODE, room, log, 86_800.0) != ""
    assert why_not_again(Role.DECODE, room, log, 1800.0) == ""


def test_a_failed_reversal_is_tried_again() -> None:
    log = TO_DECODE.begun(NOW, Role.PREFILL, undoes=True).ended(1200.0, done=False)

    assert why_not_again(Role.DECODE, pools(RoleSplit(3, 5), WRONG), log, 1800.0) == ""
    assert regret_of(pools(RoleSplit(3, 5), WRONG), log, 1800.0) == Regret(
        Role.DECODE, Role.PREFILL
    )


def test_reversals_do_not_oscillate() -> None:
    """A reversal is not itself reversed, however full the pools become."""
    log = TO_DECODE.begun(NOW, Role.PREFILL, undoes=True).ended(1200.0)

    turned = {Role.PREFILL: 0.1, Role.DECODE: 1.5}
    assert regret_of(pools(RoleSplit(4, 4), turned), log, 1800.0) is None


def test_a_giver_known_to_be_short_is_not_regretted() -> None:
    both = SplitNeeds(np.full((4, 12), 3), np.full((4, 12), 7), 300.0)

    assert regret_of(pools(RoleSplit(3, 5), WRONG, both), TO_DECODE, NOW) is None


def test_a_reversal_leaves_the_minimum_of_a_pool() -> None:
    log = MoveLog().begun(0.0, Role.PREFILL).ended(300.0)

    assert isinstance(decided(RoleSplit(1, 1), log, {Role.PREFILL: 0.0, Role.DECODE: 2.0}), Stay)
