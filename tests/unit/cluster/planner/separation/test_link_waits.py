"""How long transfers wait for each other, compared with transfers simulated one by one."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.separation.link_waits import Transfers, carried_share, link_waits


def mean_wait(transfers: Transfers, load: float, senders: int, receivers: int) -> float:
    """Mean wait by the formula."""
    waits = link_waits(transfers, load, senders, receivers)
    assert waits is not None
    assert sum(wait.share for wait in waits) == pytest.approx(1)
    return sum(wait.share * wait.seconds for wait in waits)


def simulated_wait(dispersion: float, load: float, senders: int, receivers: int) -> float:
    """Mean wait of random transfers with a mean time of one second."""
    rng, spread = random.Random(1), math.sqrt(math.log1p(dispersion))
    sender_free, receiver_free = [0.0] * senders, [0.0] * receivers
    now, waited, count = 0.0, 0.0, 30_000
    turn: list[int] = []
    for _ in range(count):
        now += rng.expovariate(load)
        turn = turn or rng.sample(range(receivers), receivers)
        sender, receiver = rng.randrange(senders), turn.pop()
        start = max(now, sender_free[sender], receiver_free[receiver])
        waited += start - now
        length = math.exp(spread * rng.gauss(0, 1) - spread**2 / 2)
        sender_free[sender] = receiver_free[receiver] = start + length
    return waited / count


@given(
    st.floats(0.001, 1), st.floats(0, 1), st.sampled_from([(1, 1), (1, 4), (2, 2), (3, 5), (8, 8)])
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_waits_grow_with_load_and_have_no_end_beyond_the_capacity(
    seconds: float, dispersion: float, engines: tuple[int, int]
) -> None:
    transfers = Transfers(seconds, dispersion)
    most = carried_share(*engines, dispersion) * min(engines) / seconds

    waits = [mean_wait(transfers, most * part, *engines) for part in (0, 0.3, 0.6, 0.9)]

    assert waits[0] == 0
    assert waits == sorted(waits)
    assert link_waits(transfers, most * 1.01, *engines) is None


@pytest.mark.parametrize("engines", [(1, 1), (1, 5), (5, 1)])
def test_one_link_waits_as_the_textbook_queue(engines: tuple[int, int]) -> None:
    """Pollaczek and Khinchine: for equal transfers, half of u over (1 - u)."""
    waited = mean_wait(Transfers(1.0, 0.0), 0.8, *engines)

    assert carried_share(*engines, 0.0) == 1
    assert waited == pytest.approx(0.5 * 0.8 / 0.2, rel=0.15)


@pytest.mark.parametrize("engines", [(2, 2), (3, 3), (2, 4), (4, 2), (5, 1)])
@pytest.mark.parametrize("dispersion", [0.0, 1.0])
@pytest.mark.parametrize("used", [0.5, 0.8])
def test_waits_are_close_to_those_of_simulated_transfers(
    engines: tuple[int, int], dispersion: float, used: float
) -> None:
    load = used * carried_share(*engines, dispersion) * min(engines)

    formula = mean_wait(Transfers(1.0, dispersion), load, *engines)

    simulated = simulated_wait(dispersion, load, *engines)
    assert simulated * 0.9 <= formula <= simulated * 1.7


def test_unequal_prompts_and_more_links_carry_a_smaller_share() -> None:
    alike = [carried_share(links, links, 0.0) for links in (1, 2, 4, 16)]
    unequal = [carried_share(links, links, 1.0) for links in (1, 2, 4, 16)]

    assert alike == sorted(alike, reverse=True)
    assert all(less <= more for less, more in zip(unequal, alike, strict=True))
    assert carried_share(2, 8, 0.0) > carried_share(2, 2, 0.0)


def test_large_pools_carry_the_share_of_smaller_ones_in_proportion() -> None:
    assert carried_share(320, 96, 0.3) == pytest.approx(carried_share(32, 10, 0.3), rel=0.05)
