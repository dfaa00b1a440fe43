"""Keeps one worker: tells the decision core what happens to it and does what the core decides."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from dataclasses import replace

from disagg_cluster import procfs
from disagg_cluster.adoption import Found, unrecorded_life
from disagg_cluster.command import child_environment
from disagg_cluster.journal_text import Entry, Tag
from disagg_cluster.life import (
    Action,
    Event,
    Exited,
    Gone,
    Life,
    Presence,
    Resumed,
    Start,
    StartFailed,
    StopRequested,
    Tick,
    WorkerState,
)
from disagg_cluster.logs import last_lines
from disagg_cluster.lookout import Lookout
from disagg_cluster.posts import Post, Surroundings
from disagg_cluster.readiness import Target
from disagg_cluster.supervise import decide, due_ns
from disagg_cluster.worker import Child, StartError, start
from disagg_exporter.model import WorkerStatus

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
        self._process = post.entry(0, 0.0)
        self._told: tuple[WorkerState, int, int | None] = (WorkerState.STOPPED, 0, None)
        self._lookout = Lookout(post.name, around, lambda: self.life, self.tell)
        self._burial: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def adopt(self, entry: Entry | None, found: Found, *, wanted: bool) -> None:
        """Go on where the daemon before us ended; without an entry only the process is known.

        One that is not `wanted` is asked to stop and never started again.
        """
        if entry is not None:
            self.life, self._process = entry.life, entry
        if not found.recorded:
            self.life = unrecorded_life(self.life, self._around.clock())
            assert found.child is not None
            self._process = self._new_process(found.child.start_ticks)
        self._child = found.child
        if found.child is not None and found.presence is Presence.RUNNING:
            self._watch(found.child, in_seconds=0.0)
            if wanted and not self._process.runs(self.post.command):
                self._around.log.warning(
                    "%s: runs with another command than the node file's and goes on with it; "
                    "the next start uses the new one",
                    self.post.name,
                )
        elif found.child is not None:
            self._burial = self._loop.create_task(self._bury(found.child, self.life.incarnation))
        if not wanted:
            self.tell(StopRequested())
        if wanted or found.presence is not Presence.RUNNING:
            self.tell(Resumed(self.life.incarnation, found.presence, wanted))

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
            self._publish(why)
            if decision.actions or self.life != old:
                self._around.record()
        self._set_alarm()

    def status(self) -> WorkerStatus:
        """What the metrics page shows of it."""
        running = self._child is not None
        started = self._process.started_timestamp_seconds if running else None
        paused = self.life.paused_ns is not None
        return WorkerStatus(self.post.name, self.life.state, self.life.restarts, started, paused)

    def entry(self) -> Entry:
        """What the next daemon has to know of it."""
        pid = None if self._child is None else self._child.pid
        return self._process.model_copy(update={"life": self.life, "pid": pid})

    @property
    def tag(self) -> Tag:
        """As what its process was started."""
        return self.post.tag if self._child is None else self._process.tag

    def log_was_cut(self) -> None:
        """Its log begins anew: what the present process writes is at the very front."""
        self._process = self._process.model_copy(update={"log_start_bytes": 0})

    async def close(self) -> None:
        """Look no longer; whatever still runs goes on alone."""
        await self._lookout.close()
        if self._burial is not None:
            self._burial.cancel()
            await asyncio.gather(self._burial, return_exceptions=True)
        # Last: what was heard while we waited may have set the alarm, or started a process.
        if self._alarm is not None:
            self._alarm.cancel()
        if self._child is not None:
            self._loop.remove_reader(self._child.pidfd)
            self._child.let_go()

    def _do(self, action: Action) -> tuple[Event, ...]:
        if not isinstance(action, Start):
            self._around.record()
            if self._child is not None and not self._child.signal_group(action.signal):
                self._around.log.warning("%s: its group could not be signalled", self.post.name)
            return ()
        self._process = self._new_process(procfs.now_ticks())
        # Should we die before the next line, our successor knows what to look for.
        self._around.record()
        command = self.post.command
        environment = child_environment(self._around.environment, command.env)
        try:
            child = start(command.argv, environment, self.post.log_path, self.post.cwd)
        except StartError as error:
            return (StartFailed(action.incarnation, str(error)),)
        if child.log_lost:
            self._around.log.error("%s: %s", self.post.name, child.log_lost)
        self._child = child
        present = {"start_ticks": child.start_ticks, "log_start_bytes": child.log_start_bytes}
        self._process = self._process.model_copy(update=present)
        self._watch(child, in_seconds=self._around.health_seconds)
        return ()

    def _new_process(self, start_ticks: int) -> Entry:
        age_seconds = (procfs.now_ticks() - start_ticks) / os.sysconf("SC_CLK_TCK")
        return self.post.entry(start_ticks, self._around.wall() - age_seconds)

    def _watch(self, child: Child, in_seconds: float) -> None:
        self._loop.add_reader(child.pidfd, self._leader_died, child, self.life.incarnation)
        self._lookout.begin(child.pid, self._target(), in_seconds)

    def _target(self) -> Target:
        tag = self._process.tag
        return replace(
            self.post.target, host=tag.host, port=tag.port, served_model_name=tag.model_name
        )

    def _publish(self, why: str) -> None:
        life = self.life
        old_state, _, _ = self._told
        bad = life.state in (WorkerState.BACKOFF, WorkerState.FAILED)
        if why:
            change = f"{old_state} → {life.state}: " if old_state is not life.state else ""
            level = logging.WARNING if bad else logging.INFO
            self._around.log.log(level, "%s: %s%s", self.post.name, change, why)
        if life.state is WorkerState.STOPPED and life.presence is Presence.GONE:
            self.ended.set()
        else:
            self.ended.clear()
        pid = self._child.pid if self._child is not None else None
        if (life.state, life.incarnation, pid) != self._told:
            self._told = (life.state, life.incarnation, pid)
            self._around.on_change(self.post.name, old_state, life.state, pid, why)

    def _last_words(self, old: Life) -> str:
        """The end of the log, if the worker has just crashed."""
        if self.life.crashes_ns[-1:] in ((), old.crashes_ns[-1:]):
            return ""
        lines = last_lines(self.post.log_path, _SHOWN_LINES, self._process.log_start_bytes)
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

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = due_ns(self.life, self.post.policy)
        if due is not None:
            seconds = max(due - self._around.clock(), 0) / 1e9
            self._alarm = self._loop.call_later(seconds, self.tell, Tick())


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
