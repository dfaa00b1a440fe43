"""Tells those who watch how the node stands, and from then on what changes.

The node is looked at once for all of them. Who reads slowly is told less, not later: of each worker
only how it stands by then is kept, so that nobody costs more memory the longer they do not read.
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
"""How many may watch at a time, whatever carries it to them."""
QUIET_SECONDS = 10.0
"""After so long without news a watch says that all is as before."""

_LOOK_SECONDS = 1.0
_REST_SECONDS = 0.1
"""Workers that change incessantly are looked at no more often than this."""


def steady(worker: WorkerView) -> WorkerView:
    """A worker without what changes by time passing alone: what is left is news when it changes."""
    paused = None if worker.paused_seconds is None else 0.0
    return replace(worker, state_seconds=0.0, paused_seconds=paused, deadline_seconds=None)


def _steady_daemon(node: NodeOverview) -> DaemonView:
    return replace(node.daemon, uptime_seconds=0.0)


def news(before: NodeOverview | None, now: NodeOverview) -> dict[str, ControlReply]:
    """What is otherwise than before, everything if there is no before, by what it is about.

    The daemon's own words come last: with them everything up to now was told.
    """
    told = {} if before is None else {each.worker: steady(each) for each in before.workers}
    here = {worker.worker for worker in now.workers}
    found = {
        f"worker {name}": ControlReply("", ReplyOutcome.GONE, worker=worker)
        for name, worker in told.items()
        if name not in here
    }
    found |= {
        f"worker {worker.worker}": ControlReply("", ReplyOutcome.WORKER, worker=worker)
        for worker in now.workers
        if told.get(worker.worker) != steady(worker)
    }
    if now.move is not None and (before is None or before.move != now.move):
        move = replace(move_reply(now.move), id="", outcome=ReplyOutcome.MOVE)
        found["move"] = replace(move, move=move_view(now.move))
    if before is None or _steady_daemon(before) != _steady_daemon(now):
        found["daemon"] = ControlReply("", ReplyOutcome.CURRENT, daemon=now.daemon)
    return found


class _Watch:
    """What one who watches was not told yet."""

    def __init__(self, first: dict[str, ControlReply]) -> None:
        self._untold = first
        self._told = asyncio.Event()
        self._told.set()

    def tell(self, found: dict[str, ControlReply]) -> None:
        for about, reply in found.items():
            # At the end again: the order is that of what happened last.
            self._untold.pop(about, None)
            self._untold[about] = reply
        self._told.set()

    async def wait(self) -> None:
        await self._told.wait()

    def take(self) -> list[ControlReply]:
        taken, self._untold = list(self._untold.values()), {}
        self._told.clear()
        return taken


class Watching:
    """All who watch one node; used inside one running loop.

    Args:
        view: How the node stands now.
        log: Told if it cannot be looked at.
        quiet_seconds: As `QUIET_SECONDS`.
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
        self._seen: NodeOverview | None = None
        self._happened = asyncio.Event()
        self._ended = False
        self._looking: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many watch just now."""
        return len(self._watches)

    def changed(self) -> None:
        """Something has changed: look now rather than in a second."""
        self._happened.set()

    def end(self) -> None:
        """Tell all who watch how it stands at last, and that nothing follows: the daemon ends."""
        self._look_again()
        self._ended = True
        for watch in self._watches:
            watch.tell({})

    async def replies(self, request: ControlRequest) -> AsyncGenerator[ControlReply, None]:
        """Everything, then what changes, each with the id of the request; the last one is final."""
        until_seconds = request.deadline_seconds
        until_ns = None if until_seconds is None else time.monotonic_ns() + to_ns(until_seconds)
        watch = _Watch(self._look())
        self._watches.add(watch)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
        try:
            while True:
                await self._news_or_quiet(watch, until_ns)
                taken = watch.take()
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
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _look(self) -> dict[str, ControlReply]:
        """Everything for a newcomer; those who watched before are told what is new."""
        now = self._view()
        self._spread(now)
        return news(None, now)

    def _spread(self, now: NodeOverview) -> None:
        found = news(self._seen, now)
        self._seen = now
        if found:
            for watch in self._watches:
                watch.tell(found)

    async def _look_on(self) -> None:
        while self._watches:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._happened.wait()
            self._happened.clear()
            self._look_again()
            await asyncio.sleep(_REST_SECONDS)

    def _look_again(self) -> None:
        try:
            self._spread(self._view())
        except Exception:  # noqa: BLE001 - a defect here must not leave those who watch with what was
            self._log.exception("control: the node cannot be looked at")

    def _current(self) -> ControlReply:
        return ControlReply("", ReplyOutcome.CURRENT, daemon=self._view().daemon)

    async def _news_or_quiet(self, watch: _Watch, until_ns: int | None) -> None:
        """Wait for something to tell, the end, the deadline, or until it was quiet for long."""
        seconds = self._quiet_seconds
        if until_ns is not None:
            seconds = min(seconds, max(until_ns - time.monotonic_ns(), 0) / 1e9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await watch.wait()
