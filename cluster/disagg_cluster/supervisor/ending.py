"""How long a worker's end is awaited, and which workers the next daemon must know of."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from disagg_cluster.lifecycle.state import KILL, Presence
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


def is_to_be_kept(entry: Entry) -> bool:
    """Whether the next daemon must know of a worker that we leave to it."""
    return entry.life.presence is not Presence.GONE or entry.life.paused_ns is not None
