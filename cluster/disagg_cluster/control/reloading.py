"""Reloads of the node file: one per request id, each run to its end even if the client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from disagg_cluster.control.changes import reused_id
from disagg_cluster.control.messages import (
    Caller,
    ControlReply,
    ControlRequest,
    ReplyOutcome,
    RereadNodeFile,
    RereadReport,
    reread_reply,
)

Reread = Callable[[RereadNodeFile], Awaitable[RereadReport]]
"""Reads the node file again as the request says."""

Answered = Callable[[ControlRequest, Caller, ControlReply], None]


class Reloads:
    """The reloads in progress and the result of the last; used within one running loop.

    Args:
        reread: Reads the node file.
        answered: Called once per request with its reply.
        log: Logs failures.
    """

    def __init__(self, reread: Reread, answered: Answered, log: logging.Logger) -> None:
        self._reread = reread
        self._answered = answered
        self._log = log
        self._under_way: dict[str, tuple[RereadNodeFile, asyncio.Task[ControlReply]]] = {}
        self._waiting: tuple[str, ...] = ()

    @property
    def waiting(self) -> tuple[str, ...]:
        """Differences in the node file at the last reload that only the next daemon will apply."""
        return self._waiting

    async def answer(
        self, request: ControlRequest, verb: RereadNodeFile, caller: Caller
    ) -> ControlReply:
        """The reply once the file has been read; raises TimeoutError at the request's deadline."""
        reading = self._under_way.get(request.id)
        if reading is None:
            task = asyncio.create_task(self._read(request, verb, caller))
            reading = self._under_way[request.id] = verb, task
            task.add_done_callback(lambda _task: self._under_way.pop(request.id))
        elif reading[0] != verb:
            return reused_id(request)
        async with asyncio.timeout(request.deadline_seconds):
            return await asyncio.shield(reading[1])

    async def close(self) -> None:
        """Cancel all reloads, because the daemon is ending."""
        tasks = [task for _, task in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(
        self, request: ControlRequest, verb: RereadNodeFile, caller: Caller
    ) -> ControlReply:
        try:
            report = await self._reread(verb)
        except Exception:  # noqa: BLE001 - a defect here must not leave waiting clients unanswered
            self._log.exception("control: the node file cannot be read again")
            text, way_out = "the node file cannot be read again", "look at the log of the daemon"
            reply = ControlReply(request.id, ReplyOutcome.FAILED, text, way_out)
        else:
            reply = reread_reply(request.id, report, dry_run=verb.dry_run)
            if reply.outcome is ReplyOutcome.DONE:
                self._waiting = report.deferred
        self._answered(request, caller, reply)
        return reply
