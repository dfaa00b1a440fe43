"""When a worker is started next, on the clock of the wall."""

from __future__ import annotations

from collections.abc import Callable

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.state import Life, Presence
from disagg_cluster.lifecycle.state_machine import due_ns


class PlannedStart:
    """The Unix time of a worker's next start; it does not move as long as the plan does not.

    Args:
        clock: CLOCK_MONOTONIC in nanoseconds.
        wall: Unix seconds.
    """

    def __init__(self, clock: Callable[[], int], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._due_ns: int | None = None
        self._seconds: float | None = None

    def seconds(self, life: Life, policy: RestartPolicy) -> float | None:
        """Return it; None while no start is planned."""
        due = due_ns(life, policy) if life.presence is Presence.GONE else None
        if due != self._due_ns:
            self._due_ns = due
            in_ns = None if due is None else due - self._clock()
            self._seconds = None if in_ns is None else self._wall() + in_ns / 1e9
        return self._seconds
