"""Sends watching clients the state of the node and then its changes.

The node is polled once for all clients. A slow client gets fewer updates, not late ones: only the
latest state of each worker is kept for it, so that the memory per client is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from disagg_cluster.control.explanation import move_reply, move_view
from disagg_cluster.control.messages import ControlReply, ControlRequest, ReplyOutcome
from disagg_cluster.control.views import DaemonView, NodeOverview, WorkerView
from disagg_cluster.lifecycle.state import to_ns

MOST_WATCHES = 64
"""Maximum number of concurrent watches over all transports."""
QUIET_SECONDS = 10.0
"""After this long without a change, a watch sends a reply that the state is current."""

_POLL_SECONDS = 1.0
_REST_SECONDS = 0.1
"""Minimum time between polls when workers change continuously."""


def without_times(worker: WorkerView) -> WorkerView:
    """A worker without its running times and counts: a difference in what is left is a change."""
    paused = None if worker.paused_seconds is None else 0.0
    steady = replace(worker, state_seconds=0.0, paused_seconds=paused, deadline_seconds=None)
    return replace(steady, remaining="")


def _daemon_without_times(node: NodeOverview) -> DaemonView:
    return replace(node.daemon, uptime_seconds=0.0)


def differences(before: NodeOverview | None, now: NodeOverview) -> dict[str, ControlReply]:
    """Replies for what differs between two views, keyed by subject; everything if `before` is None.

    The daemon's reply comes last: it means that everything up to now was sent.
    """
    earlier = (
        {} if before is None else {each.worker: without_times(each) for each in before.workers}
    )
    here = {worker.worker for worker in now.workers}
    found = {
        f"worker {name}": ControlReply("", ReplyOutcome.GONE, worker=worker)
        for name, worker in earlier.items()
        if name not in here
    }
    found |= {
        f"worker {worker.worker}": ControlReply("", ReplyOutcome.WORKER, worker=worker)
        for worker in now.workers
        if earlier.get(worker.worker) != without_times(worker)
    }
    if now.move is not None and (before is None or before.move != now.move):
        move = replace(move_reply(now.move), id="", outcome=ReplyOutcome.MOVE)
        found["move"] = replace(move, move=move_view(now.move))
    if before is None or _daemon_without_times(before) != _daemon_without_times(now):
        found["daemon"] = ControlReply("", ReplyOutcome.CURRENT, daemon=now.daemon)
    return found


class _Watch:
    """Updates that one watching client has not received yet."""

    def __init__(self, first: dict[str, ControlReply]) -> None:
        self._pending = first
        self._available = asyncio.Event()
        self._available.set()

    def add(self, found: dict[str, ControlReply]) -> None:
        for about, reply in found.items():
            # Moved to the end: the order is that of the latest changes.
            self._pending.pop(about, None)
            self._pending[about] = reply
        self._available.set()

    async def wait(self) -> None:
        await self._available.wait()

    def drain(self) -> list[ControlReply]:
        taken, self._pending = list(self._pending.values()), {}
        self._available.clear()
        return taken


class Watching:
    """All watches of one node; used within one running loop.

    Args:
        view: Returns the current state of the node.
        log: Logs a failure of `view`.
        quiet_seconds: See `QUIET_SECONDS`.
    """

    def __init__(
        self,
        view: Callable[[], NodeOverview],
        log: logging.Logger,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._view = view
        self._log = log
        self._quiet_seconds = quiet_seconds
        self._watches: set[_Watch] = set()
        self._last: NodeOverview | None = None
        self._happened = asyncio.Event()
        self._ended = False
        self._polling: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Number of clients watching now."""
        return len(self._watches)

    def changed(self) -> None:
        """Poll now instead of at the next interval."""
        self._happened.set()

    def end(self) -> None:
        """Send all clients the last state and end their watches, because the daemon is ending."""
        self._poll_once()
        self._ended = True
        for watch in self._watches:
            watch.add({})

    async def replies(self, request: ControlRequest) -> AsyncGenerator[ControlReply, None]:
        """Yields the whole state, then changes, with the request's id; the last one is final."""
        until_seconds = request.deadline_seconds
        until_ns = None if until_seconds is None else time.monotonic_ns() + to_ns(until_seconds)
        watch = _Watch(self._whole_state())
        self._watches.add(watch)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            while True:
                await self._wait_for_updates(watch, until_ns)
                taken = watch.drain()
                for reply in taken or ([] if self._ended else [self._current()]):
                    yield replace(reply, id=request.id)
                if self._ended:
                    text = "the daemon has ended"
                    yield ControlReply(request.id, ReplyOutcome.DONE, text)
                    return
                if until_ns is not None and time.monotonic_ns() >= until_ns:
                    text = f"watched for {until_seconds:g} s"
                    yield ControlReply(request.id, ReplyOutcome.TIMEOUT, text, "watch it again")
                    return
        finally:
            self._watches.discard(watch)

    async def close(self) -> None:
        """Stop polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def _whole_state(self) -> dict[str, ControlReply]:
        """The whole state for a new client; existing clients get the changes."""
        now = self._view()
        self._distribute(now)
        return differences(None, now)

    def _distribute(self, now: NodeOverview) -> None:
        found = differences(self._last, now)
        self._last = now
        if found:
            for watch in self._watches:
                watch.add(found)

    async def _poll(self) -> None:
        while self._watches:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._happened.wait()
            self._happened.clear()
            self._poll_once()
            await asyncio.sleep(_REST_SECONDS)

    def _poll_once(self) -> None:
        try:
            self._distribute(self._view())
        except Exception:  # noqa: BLE001 - a defect here must not end all watches
            self._log.exception("control: the state of the node cannot be read")

    def _current(self) -> ControlReply:
        return ControlReply("", ReplyOutcome.CURRENT, daemon=self._view().daemon)

    async def _wait_for_updates(self, watch: _Watch, until_ns: int | None) -> None:
        """Wait for an update, the end, the deadline or the quiet interval."""
        seconds = self._quiet_seconds
        if until_ns is not None:
            seconds = min(seconds, max(until_ns - time.monotonic_ns(), 0) / 1e9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await watch.wait()
