"""Answers requests from any transport: decides, gives orders, reports progress.

The only owner of the change in progress. A transport passes in requests with their callers and
sends the replies; every change is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Protocol

from disagg_cluster.control.changes import (
    Answered,
    Changes,
    advance,
    earlier_reply,
    handle,
    refused,
    with_answered,
    with_doubt,
)
from disagg_cluster.control.decisions import IS_STOPPING, Orders, unknown_worker
from disagg_cluster.control.explanation import explain, move_view
from disagg_cluster.control.messages import (
    Caller,
    ControlReply,
    ControlRequest,
    DaemonStatus,
    ExplainWorker,
    ReplyOutcome,
    RereadNodeFile,
    RereadReport,
    WatchStatus,
    name_of,
    text_of,
)
from disagg_cluster.control.refusal import ControlRefusal, RefusalReason
from disagg_cluster.control.reloading import Reloads, Reread
from disagg_cluster.control.views import NodeOverview
from disagg_cluster.control.watching import MOST_WATCHES, Watching
from disagg_cluster.host.daemon_output import AUDIT
from disagg_cluster.lifecycle.state import to_ns

_POLL_SECONDS = 1.0
"""How often a change is checked when no event is reported."""


async def _no_file(_verb: RereadNodeFile) -> RereadReport:
    return RereadReport(problems=("this daemon has no node file",))


class ControlledNode(Protocol):
    """The node as the core sees it: reports its state and accepts orders."""

    def view(self) -> NodeOverview:
        """The current state of the node."""

    def obey(self, orders: Orders, request_id: str) -> None:
        """Carry out the orders, on behalf of the request with this id."""


class ControlCore:
    """Decides on requests and follows the change in progress; used within one running loop.

    Args:
        supervisor: Provides the view of the node and carries out orders.
        log: Logs every change with its outcome, and every refusal.
        reread: Reads the node file again on request.
    """

    def __init__(
        self, supervisor: ControlledNode, log: logging.Logger, reread: Reread = _no_file
    ) -> None:
        self._supervisor = supervisor
        self._log = log
        self._reloads = Reloads(reread, self._reloaded, log)
        self._changes = Changes()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[str] = Counter()
        self._waiting: set[asyncio.Queue[ControlReply]] = set()
        self._happened = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._watching = Watching(supervisor.view, log)

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Number of requests by verb and outcome."""
        return self._counts

    @property
    def watches(self) -> int:
        """Number of clients watching now."""
        return self._watching.count

    @property
    def waiting(self) -> tuple[str, ...]:
        """Differences in the node file at the last reload that only the next daemon will apply."""
        return self._reloads.waiting

    @property
    def refusals(self) -> Mapping[str, int]:
        """Number of refused requests by `RefusalReason`."""
        return self._refusals

    def count(self, verb: str, outcome: str, reason: str = "") -> None:
        """Count the outcome of a request, including one that was rejected before a decision."""
        self._counts[verb, outcome] += 1
        if reason:
            self._refusals[reason] += 1

    def changed(self) -> None:
        """Report that a worker has changed."""
        self._happened.set()
        self._watching.changed()

    async def answer(
        self, request: ControlRequest, caller: Caller
    ) -> AsyncGenerator[ControlReply, None]:
        """Answers a request; the last reply is final. A change goes on if the client disconnects.

        Args:
            request: The request.
            caller: The client, already authorized by the transport.
        """
        if isinstance(request.verb, DaemonStatus):
            for reply in self._status(request):
                yield reply
            return
        if isinstance(request.verb, WatchStatus):
            async with contextlib.aclosing(self._watch(request)) as watched:
                async for reply in watched:
                    yield reply
            return
        if isinstance(request.verb, ExplainWorker):
            yield self._explain(request, request.verb)
            return
        if isinstance(request.verb, RereadNodeFile):
            yield await self._reload(request, request.verb, caller)
            return
        replies: asyncio.Queue[ControlReply] = asyncio.Queue()
        final = self._handle(request, caller)
        if final is not None:
            yield final
            return
        until_ns = _until(request, time.monotonic_ns())
        self._waiting.add(replies)
        if (running := self._changes.running) is not None and running.reported:
            # For a change begun by another request, the next progress reply may be minutes away.
            replies.put_nowait(ControlReply(request.id, ReplyOutcome.PROGRESS, running.reported))
        try:
            while final is None:
                reply = await self._next(replies, request, until_ns)
                final = reply if reply.outcome.final else None
                yield reply
        finally:
            self._waiting.discard(replies)

    def end_watches(self) -> None:
        """End all watches, because the daemon is ending."""
        self._watching.end()

    async def close(self) -> None:
        """Stop following changes; what was ordered goes on."""
        await self._watching.close()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self._reloads.close()

    def _status(self, request: ControlRequest) -> list[ControlReply]:
        node = self._supervisor.view()
        self.count("status", ReplyOutcome.DONE)
        workers = [
            ControlReply(request.id, ReplyOutcome.WORKER, worker=worker) for worker in node.workers
        ]
        move = None if node.move is None else move_view(node.move)
        done = ControlReply(request.id, ReplyOutcome.DONE, daemon=node.daemon, move=move)
        return [*workers, done]

    async def _watch(self, request: ControlRequest) -> AsyncGenerator[ControlReply, None]:
        if self.watches >= MOST_WATCHES:
            why, way_out = f"{MOST_WATCHES} watch already", "end one of them, or ask for the status"
            yield self._refuse(request, ControlRefusal(RefusalReason.TOO_MANY, why, way_out))
            return
        self.count("watch", ReplyOutcome.ACCEPTED)
        async with contextlib.aclosing(self._watching.replies(request)) as replies:
            async for reply in replies:
                yield reply

    def _refuse(self, request: ControlRequest, refusal: ControlRefusal) -> ControlReply:
        self.count(name_of(request.verb), ReplyOutcome.REFUSED, refusal.reason)
        return refused(request, refusal)

    def _explain(self, request: ControlRequest, verb: ExplainWorker) -> ControlReply:
        node = self._supervisor.view()
        worker = node.worker(verb.worker)
        if worker is None:
            return self._refuse(request, unknown_worker(verb.worker, node))
        self.count("explain", ReplyOutcome.DONE)
        said = explain(worker, node, time.monotonic_ns())
        return ControlReply(request.id, ReplyOutcome.DONE, worker=worker, explanation=said)

    async def _reload(
        self, request: ControlRequest, verb: RereadNodeFile, caller: Caller
    ) -> ControlReply:
        if before := earlier_reply(self._changes, request):
            return before
        if not verb.dry_run and self._supervisor.view().daemon.stopping:
            refusal = refused(request, IS_STOPPING)
            self._audit(request, caller, refusal)
            return refusal
        try:
            return await self._reloads.answer(request, verb, caller)
        except TimeoutError:
            return _late(request, text_of(verb))

    def _reloaded(self, request: ControlRequest, caller: Caller, reply: ControlReply) -> None:
        verb = request.verb
        assert isinstance(verb, RereadNodeFile)
        if verb.dry_run:
            self.count("reload", reply.outcome, reply.reason)
            return
        self._audit(request, caller, reply)
        if reply.outcome is ReplyOutcome.DONE:
            self._changes = with_answered(self._changes, Answered(request.id, verb, reply))

    def _handle(self, request: ControlRequest, caller: Caller) -> ControlReply | None:
        """Decide and give orders; returns the final reply, or None if it is still to come."""
        node = self._supervisor.view()
        handled = handle(self._changes, request, node, time.monotonic_ns())
        self._changes = handled.changes
        if not handled.repeated:
            self._audit(request, caller, handled.reply)
        if handled.orders is not None and handled.orders.workers:
            self._supervisor.obey(handled.orders, request.id)
        if self._changes.running is not None and (self._follower is None or self._follower.done()):
            self._follower = asyncio.create_task(self._follow())
        self.changed()
        # What was ordered is written at once, or cannot be.
        return handled.reply and with_doubt(handled.reply, self._supervisor.view())

    async def _next(
        self, replies: asyncio.Queue[ControlReply], request: ControlRequest, until_ns: int | None
    ) -> ControlReply:
        left = None if until_ns is None else max(until_ns - time.monotonic_ns(), 0) / 1e9
        try:
            async with asyncio.timeout(left):
                return replace(await replies.get(), id=request.id)
        except TimeoutError:
            running = self._changes.running
            said = running.reported if running is not None else ""
            return _late(request, said or text_of(request.verb))

    async def _follow(self) -> None:
        """Report the progress of the running change until it ends."""
        while (running := self._changes.running) is not None:
            self._happened.clear()
            try:
                node = self._supervisor.view()
                changes, reply = advance(self._changes, node, time.monotonic_ns())
            except Exception:  # noqa: BLE001 - a defect here must not leave waiting clients unanswered
                self._log.exception("control: request %s cannot be followed", running.id)
                changes, text = replace(self._changes, running=None), "cannot be followed any more"
                reply = ControlReply(
                    running.id, ReplyOutcome.FAILED, text, "look at the log of the daemon"
                )
            self._changes = changes
            if reply is not None:
                self._report(name_of(running.verb), reply)
            if changes.running is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._happened.wait()

    def _report(self, verb: str, reply: ControlReply) -> None:
        if reply.outcome.final:
            level = logging.INFO if reply.outcome is ReplyOutcome.DONE else logging.WARNING
            self._log.log(level, "control: request %s: %s", reply.id, reply.text)
            self.count(verb, reply.outcome)
        for replies in self._waiting:
            replies.put_nowait(reply)

    def _audit(self, request: ControlRequest, caller: Caller, reply: ControlReply | None) -> None:
        asked, verb = text_of(request.verb), name_of(request.verb)
        said = "begun" if reply is None else f"{reply.outcome}, {reply.text}"
        granted = reply is None or reply.outcome is not ReplyOutcome.REFUSED
        level = logging.INFO if granted else logging.WARNING
        line, audit = "control: %s by %s: %s (request %s)", {AUDIT: granted}
        self._log.log(level, line, asked, caller, said, request.id, extra=audit)
        if reply is None:
            self.count(verb, ReplyOutcome.ACCEPTED)
        else:
            self.count(verb, reply.outcome, reply.reason)


def _late(request: ControlRequest, stage: str) -> ControlReply:
    text = f"{stage}: not done in time; it goes on"
    way_out = "disagg-node status shows how it stands"
    return ControlReply(request.id, ReplyOutcome.TIMEOUT, text, way_out)


def _until(request: ControlRequest, now_ns: int) -> int | None:
    seconds = request.deadline_seconds
    return None if seconds is None else now_ns + to_ns(seconds)
