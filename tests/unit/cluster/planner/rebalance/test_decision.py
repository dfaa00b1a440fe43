"""When an engine changes its role, and what no decision ever does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.rebalance.decision import Move, Stay, decide
from disagg_cluster.planner.rebalance.limits import RebalanceLimits, RebalanceLimitsError
from disagg_cluster.planner.rebalance.move_gain import MoveCost, gain_of
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_cluster.planner.rebalance.weighed_pools import WeighedPools
from disagg_exporter.model import Role

LIMITS = RebalanceLimits()
COST = MoveCost(360.0)
WEIGHT = 9.0
BLOCKS = 12


def needs(prefill: float, decode: float, spread: float = 0.0, futures: int = 20) -> SplitNeeds:
    """The same needs in all blocks, futures apart by a relative spread."""
    factors = np.exp(spread * np.random.default_rng(1).normal(size=(2, futures, BLOCKS)))
    of = [np.ceil(each * factor) for each, factor in zip((prefill, decode), factors, strict=True)]
    return SplitNeeds(of[0].astype(np.int64), of[1].astype(np.int64), 300.0)


def decided(
    split: RoleSplit,
    of: SplitNeeds,
    used: dict[Role, float] | None = None,
    limits: RebalanceLimits = LIMITS,
    cost: MoveCost = COST,
    log: MoveLog | None = None,
) -> Move | Stay:
    return decide(WeighedPools(split, of, cost, used or {}), limits, WEIGHT, log or MoveLog(), 0.0)


def test_an_engine_goes_from_the_pool_with_room_to_the_one_that_is_short() -> None:
    said = decided(RoleSplit(5, 3), needs(3, 4))

    assert isinstance(said, Move)
    assert (said.role, said.to_role) == (Role.PREFILL, Role.DECODE)
    assert said.gain.to == RoleSplit(4, 4)
    # An hour less the six minutes in which decode was still short.
    assert said.gain.over_target_seconds == pytest.approx(3600 - 360)
    assert said.gain.engine_seconds == pytest.approx(3600 - 360)


def test_the_first_of_several_moves_is_made_though_it_alone_would_hold_no_target() -> None:
    said = decided(RoleSplit(6, 2), needs(3, 5))

    assert isinstance(said, Move)
    assert (said.gain.moves, said.gain.to) == (3, RoleSplit(3, 5))


def test_nothing_moves_where_no_split_is_better() -> None:
    for of in (needs(3, 3), needs(4, 4), needs(6, 6)):
        assert decided(RoleSplit(4, 4), of) == Stay("no move pays")


def test_a_shortage_that_is_over_before_the_move_is_is_none() -> None:
    of = needs(3, 5)
    brief = SplitNeeds(of.prefill, np.where(np.arange(BLOCKS) < 1, of.decode, 4), 300.0)

    assert isinstance(decided(RoleSplit(4, 4), of), Move)
    assert decided(RoleSplit(4, 4), brief) == Stay("no move pays")


def test_a_move_that_takes_longer_must_bring_more() -> None:
    of = needs(3, 5)

    assert isinstance(decided(RoleSplit(4, 4), of, cost=MoveCost(360.0)), Move)
    assert isinstance(decided(RoleSplit(4, 4), of, cost=MoveCost(3000.0)), Stay)


def test_a_pool_at_its_least_gives_nothing() -> None:
    said = decided(RoleSplit(2, 6), needs(1, 9), limits=RebalanceLimits(least_engines=2))

    assert said == Stay("prefill keeps at least 2: a move would pay and may not be")


def test_a_pool_that_is_full_as_measured_gives_nothing_whatever_is_foreseen() -> None:
    of = needs(3, 5)
    full = {Role.PREFILL: 0.9, Role.DECODE: 0.8}

    assert decided(RoleSplit(4, 4), of, full) == Stay(
        "prefill is too full to give: it would use 120% of its capacity, and decode as it is 80% "
        "at most"
    )
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.5, Role.DECODE: 0.8}), Move)
    # Where both are beyond, the fuller one may still get it.
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.9, Role.DECODE: 1.6}), Move)


def test_no_engine_leaves_a_pool_that_would_then_be_the_fuller_one() -> None:
    """Of two pools that are about as full, by a capacity that takes one for short."""
    of = needs(3, 5)

    assert decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.6, Role.DECODE: 0.82}) == Stay(
        "prefill is too full to give: it would use 80% of its capacity, and decode as it is 82% "
        "at most"
    )
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.54, Role.DECODE: 0.82}), Move)
    # One that is full may be short of any number.
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.7, Role.DECODE: 0.9}), Move)


def test_a_pool_that_has_room_as_measured_takes_nothing_unless_more_is_to_come() -> None:
    of = needs(3, 5)
    some = {Role.PREFILL: 0.5, Role.DECODE: 0.68}
    rising = np.where(np.arange(BLOCKS) < 2, 4, of.decode)

    assert decided(RoleSplit(4, 4), of, some) == Stay(
        "decode has room: as measured it would use 68% of its capacity at most"
    )
    rises = SplitNeeds(of.prefill, rising, 300.0)
    assert isinstance(decided(RoleSplit(4, 4), rises, some), Move)


def test_an_idle_pool_gives_for_bursts_of_another_that_has_room_between_them() -> None:
    """One future of ten needs a fifth engine; the mean of the futures hides it."""
    prefill = np.full((10, BLOCKS), 3)
    prefill[0] = 5
    bursts = SplitNeeds(prefill, np.full_like(prefill, 2), 300.0)
    idle = {Role.PREFILL: 0.65, Role.DECODE: 0.2}

    said = decided(RoleSplit(4, 4), bursts, idle)

    assert isinstance(said, Move)
    assert (said.role, said.to_role) == (Role.DECODE, Role.PREFILL)
    # With an engine less decode would use 0.4: it is not idle beside prefill.
    assert isinstance(decided(RoleSplit(4, 4), bursts, {**idle, Role.DECODE: 0.3}), Stay)
    # Neither is it where prefill hardly works.
    assert isinstance(decided(RoleSplit(4, 4), bursts, {**idle, Role.PREFILL: 0.3}), Stay)


def test_a_capacity_that_what_is_measured_contradicts_moves_nothing() -> None:
    used = {Role.PREFILL: 0.5, Role.DECODE: 0.75}

    assert decided(RoleSplit(4, 4), needs(3, 7), used) == Stay(
        "by its capacity decode needs 7.0 engines now, as measured it fills 3.0: nothing moves by "
        "a capacity that is in doubt"
    )
    # A full pool may need any number more.
    assert isinstance(
        decided(RoleSplit(4, 4), needs(3, 7), {Role.PREFILL: 0.5, Role.DECODE: 0.95}), Move
    )


def test_after_a_move_it_waits_until_it_has_ended_and_cooled_down() -> None:
    log = MoveLog().begun(0.0, Role.DECODE)

    assert log.why_not(LIMITS, 1e6) == "a move is under way"
    ended = log.ended(300.0)
    assert ended.why_not(LIMITS, 400.0) == "the last move ended 100 s ago: it cools down"
    assert ended.why_not(LIMITS, 420.0) == ""


def test_no_more_moves_begin_within_an_hour_than_may() -> None:
    limits = RebalanceLimits(moves_per_hour=2, cool_down_seconds=0.0)
    log = MoveLog().begun(0.0, Role.DECODE).ended(10.0).begun(100.0, Role.DECODE).ended(110.0)

    assert log.why_not(limits, 3599.0) == "2 moves began within the last hour: no more may"
    assert log.why_not(limits, 3601.0) == ""


def test_limits_that_make_no_sense_are_told_together() -> None:
    with pytest.raises(RebalanceLimitsError) as caught:
        RebalanceLimits(0, 0, -1.0, 0.0, 0.5)

    assert str(caught.value) == (
        "0 moves an hour; 0 engines at least: a pool would be empty; a cool-down of -1.0 s; "
        "a horizon of 0.0 s; moves for 0.5 times what they cost"
    )


def test_a_gain_counts_what_is_missed_while_engines_are_moved() -> None:
    """Two moves of ten minutes: 5 prefill are short by none, by one, by two engines."""
    of = needs(5, 4)
    gain = gain_of(of, RoleSplit(5, 3), 1, MoveCost(600.0), 3600.0)

    # Prefill misses one all hour, decode one less after ten minutes.
    assert gain.engine_seconds == pytest.approx(-3600 + 3000)
    assert gain.over_target_seconds == pytest.approx(0.0)


splits = st.builds(RoleSplit, st.integers(1, 12), st.integers(1, 12))
needed = st.integers(0, 14)
filled = st.floats(0, 1.5)


@settings(max_examples=25, deadline=None)
@given(splits, needed, needed, st.floats(0, 0.5), st.integers(1, 4), st.floats(1, 7200))
def test_no_decision_takes_a_pool_below_its_least_nor_makes_it_worse(
    split: RoleSplit, prefill: int, decode: int, spread: float, least: int, downtime: float
) -> None:
    of = needs(prefill, decode, spread)
    limits = RebalanceLimits(least_engines=least)
    said = decided(split, of, limits=limits, cost=MoveCost(downtime))

    if isinstance(said, Move):
        assert said.gain.to.engines == split.engines
        assert min(split.of(said.role) - 1, said.gain.to.of(said.role)) >= least
        assert said.gain.engine_seconds > 0
        assert WEIGHT * said.gain.engine_seconds > 2 * downtime


@settings(max_examples=15, deadline=None)
@given(splits, needed, needed, st.floats(0, 0.5))
def test_what_was_moved_is_not_moved_back_for_the_same_futures(
    split: RoleSplit, prefill: int, decode: int, spread: float
) -> None:
    """So that a constant load ends in a split and stays there, whatever it began with."""
    of = needs(prefill, decode, spread)
    steps = set()
    for _ in range(split.engines):
        said = decided(split, of)
        if isinstance(said, Stay):
            break
        step = 1 if said.to_role is Role.DECODE else -1
        steps.add(step)
        split = split.moved(step)
    assert isinstance(decided(split, of), Stay)
    assert len(steps) <= 1


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(needed, needed, filled, filled), min_size=20, max_size=40),
    st.integers(1, 6),
    st.floats(0, 600),
    st.floats(10, 900),
)
def test_whatever_is_foreseen_moves_stay_within_their_budget(
    foreseen: list[tuple[int, int, float, float]],
    per_hour: int,
    cool_down: float,
    downtime: float,
) -> None:
    limits = RebalanceLimits(moves_per_hour=per_hour, cool_down_seconds=cool_down)
    cost = MoveCost(downtime)
    split, log, ends = RoleSplit(4, 4), MoveLog(), 0.0
    begun: list[float] = []
    for number, (prefill, decode, *full) in enumerate(foreseen):
        now = number * 60.0
        if log.under_way and now >= ends:
            log = log.ended(ends)
        used = dict(zip((Role.PREFILL, Role.DECODE), full, strict=True))
        pair = WeighedPools(split, needs(prefill, decode, futures=2), cost, used)
        said = decide(pair, limits, WEIGHT, log, now)
        if isinstance(said, Move):
            assert not log.under_way
            assert not begun or now - begun[-1] >= downtime + cool_down
            begun.append(now)
            log, ends = log.begun(now, said.to_role, undoes=said.undoes), now + downtime
            split = split.moved(1 if said.to_role is Role.DECODE else -1)
        assert min(split.prefill, split.decode) >= 1

    assert all(sum(at <= each < at + 3600 for each in begun) <= per_hour for at in begun)
