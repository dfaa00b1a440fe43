"""Capacity of a pool of equal engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_cluster.planner.capacity.problems import not_in_range, refuse

Bound = Literal["ttft", "itl", "kv", "max_num_seqs", "compute", "unseen"]
"""The limit reached first; `unseen` if no higher load was observed, though one may be possible."""
_LIMITS: Mapping[Bound, str] = {
    "ttft": "the time to first token",
    "itl": "the time between tokens",
    "kv": "room in the KV cache",
    "max_num_seqs": "the number of requests that an engine runs at once",
    "compute": "computing itself: the queue would grow without end",
    "unseen": "what was ever observed of these engines: more may be possible",
}


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The largest load at which the targets hold, for requests with the lengths of a mix.

    `utilization` is that load over the largest that could be computed at all. `batch` is the mean
    number of requests decoding on each engine at that load; 0 for prefill engines.
    """

    requests_per_second: float
    bound: Bound
    utilization: float
    batch: float

    @property
    def limit(self) -> str:
        """The bound, in words."""
        return _LIMITS[self.bound]


class EnginePool(Protocol):
    """Any number of engines of one kind and role, serving requests with the lengths of a mix."""

    def capacity(self, engines: int) -> PoolCapacity:
        """The largest load that exceeds no limit."""


@dataclass(frozen=True, slots=True)
class UndecidedCapacity:
    """The capacity is not known, for `reason`."""

    reason: str


def check_pool(engines: int, transfer_seconds: float = 0.0) -> None:
    """Raise `ValueError` with all problems if there can be no such pool."""
    problems = not_in_range({"transfer_seconds": transfer_seconds})
    if engines < 1:
        problems.append(f"engines is {engines}, not 1 or more")
    refuse(problems)


def capacity_of(pool: Callable[[], EnginePool], engines: int) -> PoolCapacity | UndecidedCapacity:
    """Capacity of this many engines of a pool; undecided if their step times are not known.

    Raises:
        ValueError: `engines` is below 1.
    """
    check_pool(engines)
    try:
        return pool().capacity(engines)
    except UnseenStepError as error:
        return UndecidedCapacity(str(error))
