"""What a pool of equal engines can take, and how many of them a load needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_cluster.planner.capacity.problems import not_in_range, refuse

Bound = Literal["ttft", "itl", "kv", "max_num_seqs", "compute", "unseen"]
"""What gives out first; `unseen` where more was never seen, and may be possible."""


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The largest load at which the targets still hold, for requests of the mix's lengths.

    `utilization` is that load over the largest that could be computed at all. `batch` is the mean
    number of requests that decode on each engine then; 0 for one that only prefills.
    """

    requests_per_second: float
    bound: Bound
    utilization: float
    batch: float


class EnginePool(Protocol):
    """Engines of one kind and role under requests of a mix's lengths, however many there are."""

    def capacity(self, engines: int) -> PoolCapacity:
        """The largest load at which nothing gives out."""


@dataclass(frozen=True, slots=True)
class UndecidedCapacity:
    """Nothing is said of the capacity, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class EngineNeed:
    """The fewest engines on which the targets hold.

    `low` and `high` are those at the ends of the 90 % interval of what steps take; `high` is None
    if no number is enough there. `bound` is what one engine less would break.
    """

    engines: int
    low: int
    high: int | None
    bound: Bound


def check_pool(engines: int, transfer_seconds: float = 0.0) -> None:
    """Raise `ValueError` where there is no such pool; says all that is wrong."""
    problems = not_in_range({"transfer_seconds": transfer_seconds})
    if engines < 1:
        problems.append(f"engines is {engines}, not 1 or more")
    refuse(problems)


def capacity_of(pool: Callable[[], EnginePool], engines: int) -> PoolCapacity | UndecidedCapacity:
    """What so many engines of a pool take, or that it is not known what their steps take.

    Raises:
        ValueError: No engine.
    """
    check_pool(engines)
    try:
        return pool().capacity(engines)
    except UnseenStepError as error:
        return UndecidedCapacity(str(error))
