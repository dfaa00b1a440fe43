"""How long a worker's end is awaited, and which workers the next daemon must know of."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from contextlib import suppress

from disagg_cluster.lifecycle.state import KILL, Presence, WorkerState
from disagg_cluster.lifecycle.transitions import wanted_anew
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.worker_supervisor import WorkerSupervisor

# How long the kernel may take to end a killed group, beyond the deadlines of its policy.
_KILL_SECONDS = 5.0


async def wait_until_ended(one: WorkerSupervisor) -> None:
    """Wait for a worker's end; once it was killed, no longer than that may take.

    All deadlines come later if the daemon itself was stopped meanwhile.
    """
    policy = one.spec.policy
    seconds = policy.drain_seconds + policy.stop_seconds + policy.leftover_seconds
    killed = False
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await one.ended.wait()
            return
        if killed:
            return
        killed, seconds = one.life.last_signal is KILL, _KILL_SECONDS


def left(entries: Iterable[Entry], bound: Container[str], now_ns: int) -> list[Entry]:
    """The entries of workers that we leave to the next daemon, without those it starts afresh.

    A worker in `bound` has a role, a drain or a move that its next start must respect: it is
    started afresh too, but as one that the next daemon knows.
    """
    found = []
    for entry in entries:
        life = entry.life
        if life.presence is not Presence.GONE or life.paused_ns is not None:
            found.append(entry)
        elif entry.worker in bound and life.state is not WorkerState.STOPPED:
            found.append(entry.model_copy(update={"life": wanted_anew(life, now_ns)}))
    return found
