from __future__ import annotations

from collections.abc import Sequence as Values
from dataclasses import dataclass

from disagg_cluster.simulator.engine.batch import SchedulerLimits, Sequence
from disagg_cluster.simulator.engine.lockstep import LockstepRanks
from disagg_cluster.simulator.engine.roofline import BatchWork, Price
from disagg_cluster.simulator.engine.scheduler import Scheduler

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """A millisecond for each token of the rank with the most."""

    def price(self, works: Values[BatchWork]) -> Price:
        return Price(max(work.context_tokens + work.writers for work in works) * 0.001)


def group(ranks: int = 2) -> LockstepRanks:
    schedulers = [Scheduler(SchedulerLimits(kv_blocks=1000)) for _ in range(ranks)]
    return LockstepRanks(schedulers, SlowestRank(), gap_seconds=0.002)


def test_all_ranks_end_a_step_with_the_slowest() -> None:
    made = group()
    made.submit(Sequence(0, 10, 2, 0))
    made.submit(Sequence(1, 30, 2, 0))

    first, second = made.step(5 * MS)

    assert {first.ended_ns, second.ended_ns} == {37 * MS}
    assert [len(first.started), len(second.started)] == [1, 1]
    assert (first.context_tokens, second.context_tokens) == (10, 30)


def test_a_request_goes_to_the_rank_with_the_fewest() -> None:
    made = group(3)
    for number in range(7):
        made.submit(Sequence(number, 10, 5, 0))
    made.step(0)

    assert [rank.state().running for rank in made.ranks] == [3, 2, 2]


def test_a_waiting_request_counts_as_four_running_ones() -> None:
    made = group()
    for number in range(5):
        made.ranks[0].submit(Sequence(number, 10, 9, 0))
    made.step(0)
    for number in range(5, 8):
        made.submit(Sequence(number, 10, 9, 0))
    made.step(0)

    assert [rank.state().running for rank in made.ranks] == [6, 2]


def test_a_rank_without_work_waits_and_does_nothing() -> None:
    made = group()
    made.submit(Sequence(0, 10, 2, 0))

    assert len(made.step(0)) == 1
    assert len(made.step(12 * MS)) == 1
    assert made.step(20 * MS) == []
