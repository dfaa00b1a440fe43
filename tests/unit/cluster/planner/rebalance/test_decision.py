"""When an engine changes its role, and properties of all decisions."""

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
    """The same needs in all blocks, with a relative spread between futures."""
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


def test_an_engine_moves_from_the_pool_with_room_to_the_short_one() -> None:
    advice = decided(RoleSplit(5, 3), needs(3, 4))

    assert isinstance(advice, Move)
    assert (advice.role, advice.to_role) == (Role.PREFILL, Role.DECODE)
    assert advice.gain.to == RoleSplit(4, 4)
    # An hour minus the six minutes in which decode is still short.
    assert advice.gain.over_target_seconds == pytest.approx(3600 - 360)
    assert advice.gain.engine_seconds == pytest.approx(3600 - 360)


def test_the_first_of_several_moves_is_made_even_if_it_alone_meets_no_target() -> None:
    advice = decided(RoleSplit(6, 2), needs(3, 5))

    assert isinstance(advice, Move)
    assert (advice.gain.moves, advice.gain.to) == (3, RoleSplit(3, 5))


def test_nothing_moves_where_no_split_is_better() -> None:
    for of in (needs(3, 3), needs(4, 4), needs(6, 6)):
        assert decided(RoleSplit(4, 4), of) == Stay("no move pays")


def test_a_shortage_shorter_than_a_move_is_ignored() -> None:
    of = needs(3, 5)
    brief = SplitNeeds(of.prefill, np.where(np.arange(BLOCKS) < 1, of.decode, 4), 300.0)

    assert isinstance(decided(RoleSplit(4, 4), of), Move)
    assert decided(RoleSplit(4, 4), brief) == Stay("no move pays")


def test_a_move_that_takes_longer_must_bring_more() -> None:
    of = needs(3, 5)

    assert isinstance(decided(RoleSplit(4, 4), of, cost=MoveCost(360.0)), Move)
    assert isinstance(decided(RoleSplit(4, 4), of, cost=MoveCost(3000.0)), Stay)


def test_a_pool_of_minimal_size_gives_nothing() -> None:
    advice = decided(RoleSplit(2, 6), needs(1, 9), limits=RebalanceLimits(least_engines=2))

    assert advice == Stay("prefill keeps at least 2: a move would pay but is not allowed")


def test_a_pool_measured_full_gives_nothing_despite_the_forecast() -> None:
    of = needs(3, 5)
    full = {Role.PREFILL: 0.9, Role.DECODE: 0.8}

    assert decided(RoleSplit(4, 4), of, full) == Stay(
        "prefill is too full to give: it would use 120% of its capacity, and decode without the "
        "move 80% at most"
    )
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.5, Role.DECODE: 0.8}), Move)
    # Where both exceed their capacity, the fuller one may still get it.
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.9, Role.DECODE: 1.6}), Move)


def test_no_engine_leaves_a_pool_that_would_become_the_fuller_one() -> None:
    """Both pools are about equally full, but the capacity says that one is short."""
    of = needs(3, 5)

    assert decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.6, Role.DECODE: 0.82}) == Stay(
        "prefill is too full to give: it would use 80% of its capacity, and decode without the "
        "move 82% at most"
    )
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.54, Role.DECODE: 0.82}), Move)
    # A full pool may lack any number of engines.
    assert isinstance(decided(RoleSplit(4, 4), of, {Role.PREFILL: 0.7, Role.DECODE: 0.9}), Move)


def test_a_pool_with_measured_room_takes_nothing_unless_load_will_rise() -> None:
    of = needs(3, 5)
    some = {Role.PREFILL: 0.5, Role.DECODE: 0.68}
    rising = np.where(np.arange(BLOCKS) < 2, 4, of.decode)

    assert decided(RoleSplit(4, 4), of, some) == Stay(
        "decode has room: as measured it would use 68% of its capacity at most"
    )
    rises = SplitNeeds(of.prefill, rising, 300.0)
    assert isinstance(decided(RoleSplit(4, 4), rises, some), Move)


def test_an_idle_pool_gives_an_engine_for_bursts_in_the_other_pool() -> None:
    """One future of ten needs a fifth engine; the mean of the futures hides it."""
    prefill = np.full((10, BLOCKS), 3)
    prefill[0] = 5
    bursts = SplitNeeds(prefill, np.full_like(prefill, 2), 300.0)
    idle = {Role.PREFILL: 0.65, Role.DECODE: 0.2}

    advice = decided(RoleSplit(4, 4), bursts, idle)

    assert isinstance(advice, Move)
    assert (advice.role, advice.to_role) == (Role.DECODE, Role.PREFILL)
    # With one engine less decode would use 0.4: it is not idle beside prefill.
    assert isinstance(decided(RoleSplit(4, 4), bursts, {**idle, Role.DECODE: 0.3}), Stay)
    # Nor is it if prefill is nearly idle.
    assert isinstance(decided(RoleSplit(4, 4), bursts, {**idle, Role.PREFILL: 0.3}), Stay)


@pytest.mark.parametrize("used", [0.0, 0.01])
def test_two_idle_pools_exchange_nothing(used: float) -> None:
    """By the forecast decode will need five engines, and one until then."""
    decode = np.where(np.arange(BLOCKS) < 2, 1, np.full((20, BLOCKS), 5))
    rises = SplitNeeds(np.full_like(decode, 1), decode, 300.0)
    idle = {Role.PREFILL: used, Role.DECODE: used}

    assert isinstance(decided(RoleSplit(4, 4), rises), Move)
    advice = decided(RoleSplit(4, 4), rises, idle)
    assert isinstance(advice, Stay)
    assert advice.reason.startswith("decode has room")


def test_a_capacity_that_measurements_contradict_moves_nothing() -> None:
    used = {Role.PREFILL: 0.5, Role.DECODE: 0.75}

    assert decided(RoleSplit(4, 4), needs(3, 7), used) == Stay(
        "by its capacity decode needs 7.0 engines now, but as measured it fills 3.0: nothing moves "
        "while a capacity is in doubt"
    )
    # A full pool may need any number of further engines.
    assert isinstance(
        decided(RoleSplit(4, 4), needs(3, 7), {Role.PREFILL: 0.5, Role.DECODE: 0.95}), Move
    )


def test_after_a_move_no_other_begins_until_it_has_ended_and_cooled_down() -> None:
    log = MoveLog().begun(0.0, Role.DECODE)

    assert log.why_not(LIMITS, 1e6) == "a move is under way"
    ended = log.ended(300.0)
    assert ended.why_not(LIMITS, 400.0) == "the last move ended 100 s ago: cooling down"
    assert ended.why_not(LIMITS, 420.0) == ""


def test_moves_at_a_time_that_is_still_to_come_limit_nothing() -> None:
    """The clock was set back by a day after them."""
    log = MoveLog()
    for begun in range(6):
        log = log.begun(86_400.0 + begun, Role.DECODE).ended(86_400.0 + begun)

    assert log.why_not(LIMITS, 10.0) == ""
    assert log.begun(10.0, Role.DECODE).begun_seconds == (10.0,)


def test_moves_within_an_hour_are_limited() -> None:
    limits = RebalanceLimits(moves_per_hour=2, cool_down_seconds=0.0)
    log = MoveLog().begun(0.0, Role.DECODE).ended(10.0).begun(100.0, Role.DECODE).ended(110.0)

    assert log.why_not(limits, 3599.0) == "2 moves began within the last hour: no more are allowed"
    assert log.why_not(limits, 3601.0) == ""


def test_invalid_limits_are_reported_together() -> None:
    with pytest.raises(RebalanceLimitsError) as caught:
        RebalanceLimits(0, 0, -1.0, 0.0, 0.5)

    assert str(caught.value) == (
        "0 moves an hour; 0 engines at least: a pool would be empty; a cool-down of -1.0 s; "
        "a horizon of 0.0 s; moves for 0.5 times what they cost"
    )


def test_a_gain_includes_the_shortage_during_moves() -> None:
    """A move of ten minutes out of a prefill pool that has no engine to spare."""
    of = needs(5, 4)
    gain = gain_of(of, RoleSplit(5, 3), 1, MoveCost(600.0), 3600.0)

    # Prefill lacks one all hour, decode one less after ten minutes.
    assert gain.engine_seconds == pytest.approx(-3600 + 3000)
    assert gain.over_target_seconds == pytest.approx(0.0)


splits = st.builds(RoleSplit, st.integers(1, 12), st.integers(1, 12))
needed = st.integers(0, 14)
filled = st.floats(0, 1.5)


@settings(max_examples=25, deadline=None)
@given(splits, needed, needed, st.floats(0, 0.5), st.integers(1, 4), st.floats(1, 7200))
def test_no_decision_takes_a_pool_below_its_minimum_or_has_negative_gain(
    split: RoleSplit, prefill: int, decode: int, spread: float, least: int, downtime: float
) -> None:
    of = needs(prefill, decode, spread)
    limits = RebalanceLimits(least_engines=least)
    advice = decided(split, of, limits=limits, cost=MoveCost(downtime))

    if isinstance(advice, Move):
        assert advice.gain.to.engines == split.engines
        assert min(split.of(advice.role) - 1, advice.gain.to.of(advice.role)) >= least
        assert advice.gain.engine_seconds > 0
        assert WEIGHT * advice.gain.engine_seconds > 2 * downtime


@settings(max_examples=15, deadline=None)
@given(splits, needed, needed, st.floats(0, 0.5))
def test_a_move_is_not_reversed_for_the_same_futures(
    split: RoleSplit, prefill: int, decode: int, spread: float
) -> None:
    """So a constant load settles at a split, from any initial one."""
    of = needs(prefill, decode, spread)
    steps = set()
    for _ in range(split.engines):
        advice = decided(split, of)
        if isinstance(advice, Stay):
            break
        step = 1 if advice.to_role is Role.DECODE else -1
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
def test_moves_stay_within_their_budget_for_any_forecast(
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
        advice = decide(pair, limits, WEIGHT, log, now)
        if isinstance(advice, Move):
            assert not log.under_way
            assert not begun or now - begun[-1] >= downtime + cool_down
            begun.append(now)
            log, ends = log.begun(now, advice.to_role, undoes=advice.undoes), now + downtime
            split = split.moved(1 if advice.to_role is Role.DECODE else -1)
        assert min(split.prefill, split.decode) >= 1

    assert all(sum(at <= each < at + 3600 for each in begun) <= per_hour for at in begun)
