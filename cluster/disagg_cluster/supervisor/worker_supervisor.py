"""Keeps one worker: tells the decision core what happens to it and does what the core decides."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from dataclasses import replace
from functools import partial

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.worker_logs import last_lines, shown_end
from disagg_cluster.lifecycle.deadlines import PlannedStart, due_ns
from disagg_cluster.lifecycle.failures import FailureReports, has_crashed
from disagg_cluster.lifecycle.state import (
    Action,
    Event,
    Exited,
    Gone,
    Lifecycle,
    Presence,
    Resumed,
    Signal,
    Start,
    StartFailed,
    StopRequested,
    Tick,
    Unwatched,
    WorkerState,
    to_ns,
)
from disagg_cluster.lifecycle.state_machine import decide
from disagg_cluster.lifecycle.transitions import is_frozen
from disagg_cluster.lifecycle.worker_identity import WorkerIdentity
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_cluster.supervisor.health_loop import LATE_SECONDS, HealthLoop
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.ownership.adoption import FoundProcess, unrecorded_life
from disagg_cluster.supervisor.process.child_process import ChildProcess, StartError
from disagg_cluster.supervisor.process.death_watch import DeathWatch
from disagg_cluster.supervisor.process.retries import RETRY_SECONDS, Retried
from disagg_cluster.supervisor.starting import start_or_adopt
from disagg_cluster.supervisor.worker_spec import SupervisorContext, WorkerSnapshot, WorkerSpec
from disagg_exporter.collectors import explain
from disagg_exporter.model import WorkerStatus

_SHOWN_LINES = 10


class WorkerSupervisor:
    """One worker in the running loop. `ended` is set while it is stopped and nothing is left.

    What it does to the world may fail for want of descriptors, memory or processes; it is then
    done again until it succeeds (`Retried`), so that no death and no deadline is ever lost.
    """

    def __init__(self, post: WorkerSpec, around: SupervisorContext) -> None:
        self.post = post
        self.life = Lifecycle()
        self.ended = asyncio.Event()
        self.ended.set()
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._child: ChildProcess | None = None
        self._process = post.entry(0, 0.0)
        self._reason = ""
        self._told: tuple[WorkerState, int, int | None] = (WorkerState.STOPPED, 0, None)
        self._retried = Retried(post.name, around.supervision, around.reserve)
        whose = post.name, post.role_text, post.log_path
        self._failures = FailureReports(*whose, around.on_failure, around.wall)
        self._lookout = HealthLoop(post.name, around, lambda: self.life, self.tell)
        self._deaths = DeathWatch(self._retried, around.scan, self._exited, self._gone)
        self._planned_start = PlannedStart(around.clock, around.wall)
        self._closed = False
        self._alarm: asyncio.TimerHandle | None = None

    def adopt(self, entry: Entry | None, found: FoundProcess, *, wanted: bool) -> None:
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
        if not wanted:
            self.tell(StopRequested())
        if wanted or found.presence is not Presence.RUNNING:
            meant = self.life.presence is Presence.RUNNING
            started = not (meant and entry is not None and entry.pid is None)
            self.tell(Resumed(self.life.generation, found.presence, wanted, started))
        if found.child is not None and found.presence is Presence.LEFTOVER:
            self._around.groups.attach(self.post.name, self.post.log_path, found.child)
            # Not before: the last of them may die at any moment, and a death is heard once.
            self._deaths.begin_with_rest(found.child)

    def tell(self, event: Event) -> None:
        """Take in what happened and act on it, with all that follows from it."""
        events = deque([event])
        try:
            while events:
                old = self.life
                policy = self.post.policy
                heard = events.popleft()
                decision = decide(old, heard, self._around.clock(), policy, self._around.jitter())
                self.life = decision.life
                why = "; ".join((*decision.notes, *self._verdict(heard)))
                pid = self._told[2]
                lines = self._last_lines(old, heard)
                for action in decision.actions:
                    events.extend(self._do(action))
                self._publish(why, shown_end(self.post.log_path, lines))
                told = partial(self._failures.take, old, self.life, heard, why, pid, lines)
                self._retried.run("tell of its failure", told)
                if decision.actions or self.life != old:
                    self._record()
        finally:
            self._set_alarm()

    def status(self) -> WorkerStatus:
        """What the metrics page shows of it."""
        running = self._child is not None
        started = self._process.started_timestamp_seconds if running else None
        paused = self.life.paused_ns is not None
        life = self.life
        planned = self._planned_start.seconds(life, self.post.policy)
        return WorkerStatus(self.post.name, life.state, life.restarts, started, paused, planned)

    def standing(self) -> WorkerSnapshot:
        """Where it stands, for those who decide about it from outside."""
        return WorkerSnapshot(self.post, self.life, self.tag, self._pid, self._reason)

    @property
    def unwatched_seconds(self) -> float:
        """How long nobody has looked at a process of it that is to be looked at."""
        return self._lookout.unwatched_seconds

    def entry(self) -> Entry:
        """What the next daemon has to know of it."""
        return self._process.model_copy(update={"life": self.life, "pid": self._pid})

    @property
    def _pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def child(self) -> ChildProcess | None:
        """Its process; None without one."""
        return self._child

    @property
    def tag(self) -> WorkerIdentity:
        """As what its process was started."""
        return self.post.tag if self._child is None else self._process.tag

    @property
    def command_digest(self) -> str:
        """A fingerprint of the command that its process was started by."""
        return self._process.command_digest

    def log_was_cut(self) -> None:
        """Its log begins anew: what the present process writes is at the very front."""
        self._process = self._process.model_copy(update={"log_start_bytes": 0})

    async def close(self) -> None:
        """Look no longer; whatever still runs goes on alone."""
        await self._lookout.close()
        # Last: what was heard while we waited may have set the alarm, or started a process.
        self._closed = True
        self._retried.close()
        if self._alarm is not None:
            self._alarm.cancel()
        self._deaths.close()

    def _do(self, action: Action) -> tuple[Event, ...]:
        if isinstance(action, Start):
            failed = self._start(action.generation)
            return () if failed is None else (failed,)
        self._record()
        self._retried.run(f"send {action.signal.name}", partial(self._signal, action))
        return ()

    def _signal(self, action: Signal) -> None:
        child = self._child
        if child is None or self.life.generation != action.generation or is_frozen(self.life):
            return
        if not child.signal_group(action.signal):
            self._around.log.warning("%s: its group could not be signalled", self.post.name)

    def _start(self, generation: int) -> StartFailed | None:
        self._process = self._new_process(procfs.now_ticks())
        # Should we die before the next line, our successor knows what to look for.
        self._record()
        what = f"{self.post.name}: start"
        try:
            child = self._around.reserve.run(partial(start_or_adopt, self.post, self._around))
        except StartError as error:
            if error.refused:
                self._around.supervision.failed(what, error)
            return StartFailed(generation, str(error), error.refused)
        except Exception as error:  # noqa: BLE001 - a worker without a process is started again
            self._around.supervision.failed(what, error)
            return StartFailed(generation, f"cannot start: {explain(error)}", refused=True)
        self._around.supervision.over(what)
        if child.log_lost:
            self._around.log.error("%s: %s", self.post.name, child.log_lost)
        self._child = child
        if child.start_ticks < self._process.start_ticks:
            self._process = self._new_process(child.start_ticks)
        present = {"start_ticks": child.start_ticks, "log_start_bytes": child.log_start_bytes}
        self._process = self._process.model_copy(update=present)
        self._watch(child, in_seconds=self._around.health_seconds)
        return None

    def _record(self) -> None:
        self._retried.run("write the journal", self._around.record)

    def _new_process(self, start_ticks: int) -> Entry:
        age_seconds = (procfs.now_ticks() - start_ticks) / os.sysconf("SC_CLK_TCK")
        return self.post.entry(start_ticks, self._around.wall() - age_seconds)

    def _watch(self, child: ChildProcess, in_seconds: float) -> None:
        self._around.groups.attach(self.post.name, self.post.log_path, child)
        self._deaths.begin(child)
        self._lookout.begin(child.pid, self._target(), in_seconds)

    def _target(self) -> ProbeTarget:
        tag = self._process.tag
        return replace(
            self.post.target, host=tag.host, port=tag.port, served_model_name=tag.model_name
        )

    def _publish(self, reason: str, words: str) -> None:
        life, old_state, why = self.life, self._told[0], reason + words
        if reason and (life.state, life.generation) != self._told[:2]:
            self._reason = reason
        bad = life.state in (WorkerState.BACKOFF, WorkerState.FAILED)
        if why:
            change = f"{old_state} → {life.state}: " if old_state is not life.state else ""
            level = logging.WARNING if bad else logging.INFO
            self._around.log.log(level, "%s: %s%s", self.post.name, change, why)
        if life.state is WorkerState.STOPPED and life.presence is Presence.GONE:
            self.ended.set()
        else:
            self.ended.clear()
        self._retried.run("tell of its change", partial(self._tell_change, why))

    def _tell_change(self, why: str) -> None:
        pid = self._pid
        told = (self.life.state, self.life.generation, pid)
        if told != self._told:
            self._around.on_change(self.post.name, self._told[0], told[0], pid, why)
            self._told = told

    def _last_lines(self, old: Lifecycle, heard: Event) -> tuple[str, ...]:
        """The end of the log, if a process has just crashed."""
        if isinstance(heard, StartFailed) or not has_crashed(old, self.life):
            return ()
        return last_lines(self.post.log_path, _SHOWN_LINES, self._process.log_start_bytes)

    def _exited(self, code: int | None, alone: bool) -> None:
        if alone:
            self._child = None
        self.tell(Exited(self.life.generation, code, alone))
        self._around.groups.leave(self.post.name)

    def _gone(self) -> None:
        self._child = None
        self.tell(Gone(self.life.generation))
        self._around.groups.leave(self.post.name)

    def _verdict(self, heard: Event) -> tuple[str, ...]:
        """What its limits had to do with its end."""
        groups, post = self._around.groups, self.post
        verdict = groups.verdict(post.name, post.limits) if isinstance(heard, Exited) else ""
        return (verdict,) if verdict else ()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = due_ns(self.life, self.post.policy)
        if due is not None and not self._closed:
            seconds = max(due - self._around.clock(), 0) / 1e9
            self._alarm = self._loop.call_later(seconds, self._ring, due)

    def _ring(self, due: int) -> None:
        """Act on a deadline; not on one of a process whose death we could not take in yet."""
        if not self._deaths.is_heard():
            self._alarm = self._loop.call_later(RETRY_SECONDS, self._ring, due)
            return
        late = self._around.clock() - due > to_ns(LATE_SECONDS)
        self.tell(Unwatched() if late else Tick())
