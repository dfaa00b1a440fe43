"""Supervisors of small real children under test, with their changes as a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.state import LaunchCommand, WorkerState
from disagg_cluster.supervisor.health.prober import Probe
from disagg_cluster.supervisor.health.readiness import ProbeTarget, probe
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.ownership.control_groups import ControlGroups
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.model import EnginePage
from support.children import PYTHON, SERVER, children, descriptors, free_port

STOPPED, STARTING, READY = WorkerState.STOPPED, WorkerState.STARTING, WorkerState.READY
DRAINING, BACKOFF, FAILED = WorkerState.DRAINING, WorkerState.BACKOFF, WorkerState.FAILED

QUICK = RestartPolicy(
    start_seconds=15,
    drain_seconds=0,
    stop_seconds=10,
    leftover_seconds=0.02,
    backoff_first_seconds=0.02,
    backoff_jitter_ratio=0,
    crash_limit=3,
    hang_probes=3,
    hang_grace_seconds=0,
)


class Change(NamedTuple):
    worker: str
    old: WorkerState
    new: WorkerState
    pid: int | None
    why: str


@dataclass
class RunningSupervisor:
    """A supervisor with its changes as a queue."""

    supervisor: Supervisor
    changes: asyncio.Queue[Change]
    pages: dict[str, EnginePage]
    left: bool = False

    async def until(self, state: WorkerState, worker: str | None = None) -> Change:
        """Wait for the next change into a state."""
        while True:
            change = await self.changes.get()
            if change.new is state and worker in (None, change.worker):
                return change

    def seen(self) -> list[WorkerState]:
        """Return the states that occurred and were not waited for."""
        return [self.changes.get_nowait().new for _ in range(self.changes.qsize())]


def supervised(
    specs: list[WorkerSpec],
    story: Callable[[RunningSupervisor], Awaitable[None]],
    probe_seconds: float = 5.0,
    probe: Probe = probe,
    journal: Journal | None = None,
    entries: Sequence[Entry] | None = None,
    wanted: bool = True,
    groups: ControlGroups | None = None,
) -> None:
    """Run a coroutine with a running supervisor; afterwards nothing of it may be left.

    With `entries`, it continues with the workers named there. A coroutine that releases its workers
    leaves them to the harness.
    """

    async def run() -> None:
        changes: asyncio.Queue[Change] = asyncio.Queue()
        pages: dict[str, EnginePage] = {}
        supervisor = Supervisor(
            specs,
            lambda *change: changes.put_nowait(Change(*change)),
            pages.get,
            health_seconds=0.02,
            probe_seconds=probe_seconds,
            probe=probe,
            journal=journal,
            groups=groups,
        )
        harness = RunningSupervisor(supervisor, changes, pages)
        async with asyncio.timeout(60):
            if entries is not None:
                supervisor.adopt(entries, wanted=wanted)
            if wanted:
                await supervisor.start()
            try:
                await story(harness)
            finally:
                if harness.left:
                    await supervisor.leave()
                else:
                    assert await supervisor.stop() == ()
        if not harness.left:
            assert {status.state for status in supervisor.statuses()} == {"stopped"}
            assert children() <= before

    before = children()
    open_before = descriptors()
    asyncio.run(run())
    assert descriptors() == open_before


def tiny_spec(
    folder: Path,
    script: str | None = None,
    *arguments: str,
    name: str = "w",
    policy: RestartPolicy = QUICK,
) -> WorkerSpec:
    """Return a specification that runs a script, or by default the test server."""
    target = ProbeTarget(free_port(), "tiny")
    if script is None:
        script, arguments = SERVER, (str(target.port), "tiny")
    command = LaunchCommand((*PYTHON, script, *arguments), {})
    return WorkerSpec(name, command, folder / f"{name}.log", target, policy)
