"""The workers of a running daemon as requests see them, and their orders as events."""

from __future__ import annotations

import time
from collections.abc import Callable

from disagg_cluster.control.decisions import Orders
from disagg_cluster.control.requests import Pause, Restart, Resume, Verb
from disagg_cluster.control.views import DaemonView, NodeView, WorkerView
from disagg_cluster.lifecycle.state import Event, PauseRequested, RestartRequested, UnpauseRequested
from disagg_cluster.supervisor.supervisor import Crew
from disagg_cluster.supervisor.worker_spec import Standing


class CrewSupervisor:
    """Shows a crew and passes orders on to it (a `Supervisor` of `ControlCore`).

    Args:
        crew: The workers.
        daemon: How the daemon itself stands.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        crew: Crew,
        daemon: Callable[[], DaemonView],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._crew = crew
        self._daemon = daemon
        self._clock_ns = clock_ns

    def view(self) -> NodeView:
        """How the node stands now."""
        now_ns = self._clock_ns()
        standings = self._crew.standings()
        return NodeView(self._daemon(), tuple(worker_view(each, now_ns) for each in standings))

    def obey(self, orders: Orders) -> None:
        """Tell each worker what was decided."""
        for worker in orders.workers:
            self._crew.tell(worker, event_of(orders.verb))


def worker_view(standing: Standing, now_ns: int) -> WorkerView:
    """One worker as requests see it at `now_ns`."""
    post, life, tag = standing.post, standing.life, standing.tag
    policy = post.policy
    paused_ns = life.paused_ns
    return WorkerView(
        worker=post.name,
        state=life.state,
        incarnation=life.incarnation,
        pid=standing.pid,
        state_seconds=max(now_ns - life.since_ns, 0) / 1e9,
        paused_seconds=None if paused_ns is None else max(now_ns - paused_ns, 0) / 1e9,
        restarting=life.restarting,
        restarts=life.restarts,
        reason=standing.reason,
        role=post.role_text if post.in_front else tag.role.value,
        gpus=tag.gpus,
        host=tag.host,
        port=tag.port,
        restart_seconds=policy.drain_seconds + policy.stop_seconds + policy.start_seconds,
    )


def event_of(verb: Verb) -> Event:
    """What an order means to the worker that it is for."""
    match verb:
        case Pause():
            return PauseRequested()
        case Resume():
            return UnpauseRequested()
        case Restart(_, drain):
            return RestartRequested(drain)
        case _:
            raise ValueError(f"{verb} is no order")
