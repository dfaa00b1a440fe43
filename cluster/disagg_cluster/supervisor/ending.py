"""How long the end of a worker is waited for, and what the next daemon is to know of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from disagg_cluster.lifecycle.state import KILL, Presence
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.worker_supervisor import WorkerSupervisor

# What the kernel may take to end a killed group, beyond the deadlines of its policy.
_KILL_SECONDS = 5.0


async def wait_until_ended(one: WorkerSupervisor) -> None:
    """Wait for its end; for one that was killed and is there still, no longer than that may take.

    All deadlines come later where we ourselves were stopped meanwhile.
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


def is_to_be_kept(entry: Entry) -> bool:
    """Whether the next daemon is to know of a worker that we leave to it."""
    return entry.life.presence is not Presence.GONE or entry.life.paused_ns is not None
