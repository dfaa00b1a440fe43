"""Keeps one worker: tells the decision core what happens to it and does what the core decides."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from functools import partial

from disagg_cluster.command import child_environment
from disagg_cluster.life import (
    Action,
    Drained,
    Event,
    Exited,
    Gone,
    Life,
    Presence,
    Probed,
    Start,
    StartFailed,
    Tick,
    WorkerState,
)
from disagg_cluster.logs import last_lines
from disagg_cluster.posts import Post, Surroundings
from disagg_cluster.readiness import ProbeResult
from disagg_cluster.supervise import decide, due_ns
from disagg_cluster.worker import Child, StartError, start
from disagg_exporter.model import EnginePage, WorkerStatus

_SHOWN_LINES = 10


class Keeper:
    """One worker in the running loop. `ended` is set while it is stopped and nothing is left."""

    def __init__(self, post: Post, around: Surroundings) -> None:
        self.post = post
        self.life = Life()
        self.ended = asyncio.Event()
        self.ended.set()
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._started_timestamp_seconds = 0.0
        self._log_start_bytes = 0
        self._told_pid: int | None = None
        self._proven: frozenset[int] = frozenset()
        self._probing: asyncio.Future[ProbeResult] | None = None
        self._burial: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None

    def tell(self, event: Event) -> None:
        """Take in what happened and act on it, with all that follows from it."""
        events = deque([event])
        while events:
            old = self.life
            policy = self.post.policy
            heard = events.popleft()
            decision = decide(old, heard, self._around.clock(), policy, self._around.jitter())
            self.life = decision.life
            why = "; ".join(decision.notes)
            if not isinstance(heard, StartFailed):
                why += self._last_words(old)
            for action in decision.actions:
                events.extend(self._do(action))
            self._publish(old, why)
        self._set_alarm()

    def status(self) -> WorkerStatus:
        """What the metrics page shows of it."""
        running = self._child is not None
        started = self._started_timestamp_seconds if running else None
        return WorkerStatus(self.post.name, self.life.state, self.life.restarts, started)

    async def close(self) -> None:
        """Look no longer; whatever still runs goes on alone."""
        for handle in (self._alarm, self._next_look):
            if handle is not None:
                handle.cancel()
        if self._child is not None:
            self._loop.remove_reader(self._child.pidfd)
        if self._burial is not None:
            self._burial.cancel()
        await asyncio.gather(
            *(waited for waited in (self._burial, self._probing) if waited is not None),
            return_exceptions=True,
        )

    def _do(self, action: Action) -> tuple[Event, ...]:
        if not isinstance(action, Start):
            if self._child is not None and not self._child.signal_group(action.signal):
                self._around.log.warning("%s: its group could not be signalled", self.post.name)
            return ()
        command = self.post.command
        environment = child_environment(self._around.environment, command.env)
        try:
            child = start(command.argv, environment, self.post.log_path, self.post.cwd)
        except StartError as error:
            return (StartFailed(action.incarnation, str(error)),)
        self._child = child
        self._started_timestamp_seconds = self._around.wall()
        self._log_start_bytes = child.log_start_bytes
        self._proven = frozenset()
        self._loop.add_reader(child.pidfd, self._leader_died, child, action.incarnation)
        self._look_later()
        return ()

    def _publish(self, old: Life, why: str) -> None:
        life = self.life
        bad = life.state in (WorkerState.BACKOFF, WorkerState.FAILED)
        if why:
            change = f"{old.state} → {life.state}: " if old.state is not life.state else ""
            level = logging.WARNING if bad else logging.INFO
            self._around.log.log(level, "%s: %s%s", self.post.name, change, why)
        if life.state is WorkerState.STOPPED and life.presence is Presence.GONE:
            self.ended.set()
        else:
            self.ended.clear()
        pid = self._child.pid if self._child is not None else None
        moved = life.state is not old.state or life.incarnation != old.incarnation
        if moved or pid != self._told_pid:
            self._told_pid = pid
            self._around.on_change(self.post.name, old.state, life.state, pid, why)

    def _last_words(self, old: Life) -> str:
        """The end of the log, if the worker has just crashed."""
        if self.life.crashes_ns[-1:] in ((), old.crashes_ns[-1:]):
            return ""
        lines = last_lines(self.post.log_path, _SHOWN_LINES, self._log_start_bytes)
        return f"; end of {self.post.log_path}:\n  " + "\n  ".join(lines) if lines else ""

    def _leader_died(self, child: Child, incarnation: int) -> None:
        self._loop.remove_reader(child.pidfd)
        code = child.exit_code()
        if child.survivors():
            self._burial = self._loop.create_task(self._bury(child, incarnation))
            self.tell(Exited(incarnation, code, alone=False))
        else:
            child.reap()
            self._child = None
            self.tell(Exited(incarnation, code, alone=True))

    async def _bury(self, child: Child, incarnation: int) -> None:
        """Wait for the last of the session."""
        while survivors := child.survivors():
            pidfd = child.watch(survivors[0])
            if pidfd is not None:
                await _readable(pidfd)
        child.reap()
        self._child = None
        self.tell(Gone(incarnation))

    def _look_later(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self._loop.call_later(self._around.health_seconds, self._look)

    def _look(self) -> None:
        """Probe a worker that should serve; see whether a draining one is done."""
        life, child = self.life, self._child
        if child is None or life.presence is not Presence.RUNNING or life.sent is not None:
            return
        self._look_later()
        if life.state is WorkerState.DRAINING:
            page = self._around.page_of(self.post.name)
            # A page older than the drain may not know of the last requests.
            if page is not None and page.t_ns > life.since_ns and _is_done(page):
                self.tell(Drained(life.incarnation))
        elif self._probing is None:
            around = self._around
            arguments = (self.post.target, child.pid, around.probe_seconds, self._proven)
            self._probing = self._loop.run_in_executor(around.executor, around.probe, *arguments)
            self._probing.add_done_callback(partial(self._probed, life.incarnation))

    def _probed(self, incarnation: int, probing: asyncio.Future[ProbeResult]) -> None:
        self._probing = None
        if probing.cancelled():
            return
        result = probing.result()
        if result.proven and incarnation == self.life.incarnation:
            self._proven = result.proven
        self.tell(Probed(incarnation, result.health, result.why))

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = due_ns(self.life, self.post.policy)
        if due is not None:
            seconds = max(due - self._around.clock(), 0) / 1e9
            self._alarm = self._loop.call_later(seconds, self.tell, Tick())


def _is_done(page: EnginePage) -> bool:
    return page.running == 0 and not page.waiting


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor can be read, and close it."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
