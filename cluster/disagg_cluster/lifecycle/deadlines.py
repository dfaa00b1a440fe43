"""When a worker's next deadline is due, and when it is started next."""

from __future__ import annotations

from collections.abc import Callable

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.state import TERM, Lifecycle, Presence, WorkerState, to_ns
from disagg_cluster.lifecycle.transitions import is_frozen


def due_ns(life: Lifecycle, policy: RestartPolicy) -> int | None:
    """Return the instant at which time alone changes something: call `decide` again then."""
    if is_frozen(life):
        return None
    if life.presence is Presence.GONE:
        return _next_start_ns(life, policy)
    if life.last_signal is TERM:
        leaderless = life.presence is Presence.LEFTOVER
        seconds = policy.leftover_seconds if leaderless else policy.stop_seconds
        return life.last_signal_ns + to_ns(seconds)
    if life.last_signal is not None:
        # An ineffective kill (a process stuck in the kernel) is not repeated in a busy loop.
        return life.last_signal_ns + to_ns(max(policy.stop_seconds, 1.0))
    if life.state is WorkerState.STARTING:
        deadline_ns = life.since_ns + to_ns(ready_seconds(life, policy))
        return max(deadline_ns, life.patient_until_ns)
    if life.state is WorkerState.DRAINING:
        return life.since_ns + to_ns(policy.drain_seconds)
    return None


def ready_seconds(life: Lifecycle, policy: RestartPolicy) -> float:
    """Return how long a start may take until the worker is ready."""
    return policy.resume_seconds if life.served else policy.start_seconds


class PlannedStart:
    """The Unix time of a worker's next start; stable as long as the plan is.

    Args:
        clock: CLOCK_MONOTONIC in nanoseconds.
        wall: Unix seconds.
    """

    def __init__(self, clock: Callable[[], int], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._due_ns: int | None = None
        self._seconds: float | None = None

    def seconds(self, life: Lifecycle, policy: RestartPolicy) -> float | None:
        """Return it; None while no start is planned."""
        due = due_ns(life, policy) if life.presence is Presence.GONE else None
        if due != self._due_ns:
            self._due_ns = due
            in_ns = None if due is None else due - self._clock()
            self._seconds = None if in_ns is None else self._wall() + in_ns / 1e9
        return self._seconds


def _next_start_ns(life: Lifecycle, policy: RestartPolicy) -> int | None:
    """Return when a worker without a process is started next; None if no start is planned."""
    if life.state is WorkerState.BACKOFF:
        return life.retry_ns
    if life.state is WorkerState.FAILED and policy.failed_retry_seconds > 0:
        return life.since_ns + to_ns(policy.failed_retry_seconds)
    return None
