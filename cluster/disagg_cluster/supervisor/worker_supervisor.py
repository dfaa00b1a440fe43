"""Supervises one worker: passes events to `decide` and carries out its decisions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from functools import partial

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.worker_logs import last_lines, shown_end
from disagg_cluster.lifecycle.deadlines import due_ns
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
    WorkerIdentity,
    WorkerState,
    to_ns,
)
from disagg_cluster.lifecycle.state_machine import decide
from disagg_cluster.lifecycle.transitions import is_frozen
from disagg_cluster.supervisor.health_loop import LATE_SECONDS, HealthLoop
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.ownership.adoption import FoundProcess, unrecorded_life
from disagg_cluster.supervisor.process.child_process import ChildProcess, StartError
from disagg_cluster.supervisor.process.death_watch import DeathWatch
from disagg_cluster.supervisor.process.retries import RETRY_SECONDS, Retrier
from disagg_cluster.supervisor.reported_status import ReportedStatus
from disagg_cluster.supervisor.worker_spec import (
    SupervisorContext,
    WorkerSnapshot,
    WorkerSpec,
    start_or_adopt,
)
from disagg_exporter.collectors import explain
from disagg_exporter.model import Role, WorkerStatus

_SHOWN_LINES = 10


class WorkerSupervisor:
    """One worker in the running loop, with its process as `child`.

    `ended` is set while it is stopped and nothing is left of it.

    Its actions may fail for lack of descriptors, memory or processes; they are then repeated until
    they succeed (`Retrier`), so that no death and no deadline is ever lost.
    """

    def __init__(self, spec: WorkerSpec, context: SupervisorContext) -> None:
        self.spec = spec
        self.life = Lifecycle()
        self.ended = asyncio.Event()
        self.ended.set()
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.child: ChildProcess | None = None
        self._process = spec.entry(0, 0.0)
        self._reason = ""
        self._reported: tuple[WorkerState, int, int | None] = (WorkerState.STOPPED, 0, None)
        self._retrier = Retrier(spec.name, context.supervision, context.reserve)
        whose = spec.name, spec.role_text, spec.log_path
        self._failures = FailureReports(*whose, context.on_failure, context.wall)
        self._health_loop = HealthLoop(spec.name, context, lambda: self.life, self.handle)
        self._deaths = DeathWatch(self._retrier, context.scan, self._exited, self._gone)
        self._status = ReportedStatus(spec.name, spec.log_path, context.clock, context.wall)
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def adopt(self, entry: Entry | None, found: FoundProcess, *, wanted: bool) -> None:
        """Continue where the previous daemon ended; without an entry only the process is known.

        A worker that is not `wanted` is asked to stop and never restarted.
        """
        if entry is not None:
            self.life, self._process = entry.life, entry
            self._reason = self._status.adopted(entry.life, entry.log_start_bytes)
        if not found.recorded:
            self.life = unrecorded_life(self.life, self._context.clock())
            assert found.child is not None
            self._process = self._new_process(found.child.start_ticks)
        elif found.child is not None:  # A planned start was recorded before the fork.
            known = {"start_ticks": found.child.start_ticks}
            self._process = self._process.model_copy(update=known)
        self.child = found.child
        if found.child is not None and found.presence is Presence.RUNNING:
            self._watch(found.child, in_seconds=0.0)
            if wanted and not self._process.runs(self.spec.command):
                self._context.log.warning(
                    "%s: runs with another command than the node file's and keeps running; "
                    "the next start uses the new one",
                    self.spec.name,
                )
        if not wanted:
            self.handle(StopRequested())
        if wanted or found.presence is not Presence.RUNNING:
            meant = self.life.presence is Presence.RUNNING
            started = not (meant and entry is not None and entry.pid is None)
            self.handle(Resumed(self.life.generation, found.presence, wanted, started))
        if found.child is not None and found.presence is Presence.LEFTOVER:
            self._context.groups.attach(self.spec.name, self.spec.log_path, found.child)
            # Only now: the last of them may die at any moment, and a death is reported only once.
            self._deaths.begin_with_rest(found.child)

    def handle(self, event: Event) -> None:
        """Process an event, and all that follow from it."""
        events = deque([event])
        try:
            while events:
                old, event = self.life, events.popleft()
                policy = self.spec.policy
                decision = decide(old, event, self._context.clock(), policy, self._context.jitter())
                self.life = decision.life
                why = "; ".join((*decision.notes, *self._verdict(event)))
                pid = self._reported[2]
                lines = self._last_lines(old, event)
                if has_crashed(old, self.life):
                    self._status.crashed(why, lines)
                for action in decision.actions:
                    events.extend(self._do(action))
                self._publish(why, shown_end(self.spec.log_path, lines))
                report = partial(self._failures.handle, old, self.life, event, why, pid, lines)
                self._retrier.run("report its failure", report)
                if decision.actions or (self.life is not old and self.life != old):
                    self._record()
        finally:
            self._set_timer()

    def status(self) -> WorkerStatus:
        """Its status as the metrics page shows it."""
        started = self._process.started_timestamp_seconds if self.child is not None else None
        status = self._status.status(self.life, self.spec.policy, self._process.log_start_bytes)
        return replace(status, start_timestamp_seconds=started)

    def snapshot(self) -> WorkerSnapshot:
        """Its state, for those who decide about it from outside."""
        whose = self.spec, self.life, self.tag
        return WorkerSnapshot(*whose, self._pid, self._reason, self._status.cause)

    @property
    def unwatched_seconds(self) -> float:
        """How long a process of it that should be checked has gone unchecked."""
        return self._health_loop.unwatched_seconds

    def entry(self) -> Entry:
        """The journal entry that the next daemon needs."""
        return self._process.model_copy(update={"life": self.life, "pid": self._pid})

    @property
    def _pid(self) -> int | None:
        return None if self.child is None else self.child.pid

    @property
    def tag(self) -> WorkerIdentity:
        """The identity with which its process was started."""
        return self.spec.tag if self.child is None else self._process.tag

    @property
    def command_digest(self) -> str:
        """A fingerprint of the command that started its process."""
        return self._process.command_digest

    def retag(self, role: Role) -> None:
        """Record that its engine has switched role in the same process."""
        tag = self._process.tag.model_copy(update={"role": role})
        self._process = self._process.model_copy(update={"tag": tag})

    def log_was_cut(self) -> None:
        """Record that its log was rotated: the present process's output starts at its beginning."""
        self._process = self._process.model_copy(update={"log_start_bytes": 0})

    async def close(self) -> None:
        """Stop watching; what still runs goes on alone."""
        await self._health_loop.close()
        # Last: what happened while we waited may have set the timer, or started a process.
        self._closed = True
        self._retrier.close()
        if self._timer is not None:
            self._timer.cancel()
        self._deaths.close()

    def _do(self, action: Action) -> tuple[Event, ...]:
        if isinstance(action, Start):
            failed = self._start(action.generation)
            return () if failed is None else (replace(failed, since_ns=action.since_ns),)
        self._record()
        self._retrier.run(f"send {action.signal.name}", partial(self._signal, action))
        return ()

    def _signal(self, action: Signal) -> None:
        child = self.child
        if child is None or self.life.generation != action.generation or is_frozen(self.life):
            return
        if not child.signal_group(action.signal):
            self._context.log.warning("%s: its group could not be signalled", self.spec.name)

    def _start(self, generation: int) -> StartFailed | None:
        what = f"{self.spec.name}: start"
        try:
            self._process = self._new_process(procfs.now_ticks())
            # Should we die before the next line, our successor knows what to look for.
            self._record()
            child = self._context.reserve.run(partial(start_or_adopt, self.spec, self._context))
        except StartError as error:
            if error.refused:
                self._context.supervision.failed(what, error)
            return StartFailed(generation, str(error), error.refused)
        except Exception as error:  # noqa: BLE001 - a worker without a process is started again
            self._context.supervision.failed(what, error)
            return StartFailed(generation, f"cannot start: {explain(error)}", refused=True)
        self._context.supervision.over(what)
        if child.log_lost:
            self._context.log.error("%s: %s", self.spec.name, child.log_lost)
        self.child = child
        if child.start_ticks < self._process.start_ticks:
            self._process = self._new_process(child.start_ticks)
        present = {"start_ticks": child.start_ticks, "log_start_bytes": child.log_start_bytes}
        self._process = self._process.model_copy(update=present)
        self._watch(child, in_seconds=self._context.health_seconds)
        return None

    def _record(self) -> None:
        self._retrier.run("write the journal", self._context.record)

    def _new_process(self, start_ticks: int) -> Entry:
        began_seconds = self._context.wall() - procfs.age_seconds(start_ticks)
        return self.spec.entry(start_ticks, began_seconds)

    def _watch(self, child: ChildProcess, in_seconds: float) -> None:
        self._context.groups.attach(self.spec.name, self.spec.log_path, child)
        self._deaths.begin(child)
        self._health_loop.begin(child.pid, self.spec.target_of(self._process.tag), in_seconds)

    def _publish(self, reason: str, words: str) -> None:
        life, old_state, why = self.life, self._reported[0], reason + words
        if reason and (life.state, life.generation) != self._reported[:2]:
            self._reason = reason
        bad = life.state in (WorkerState.BACKOFF, WorkerState.FAILED)
        if why:
            change = f"{old_state} → {life.state}: " if old_state is not life.state else ""
            level = logging.WARNING if bad else logging.INFO
            self._context.log.log(level, "%s: %s%s", self.spec.name, change, why)
        if life.state is WorkerState.STOPPED and life.presence is Presence.GONE:
            self.ended.set()
        else:
            self.ended.clear()
        self._retrier.run("report its change", partial(self._report_change, why))

    def _report_change(self, why: str) -> None:
        pid = self._pid
        state = (self.life.state, self.life.generation, pid)
        if state != self._reported:
            self._context.on_change(self.spec.name, self._reported[0], state[0], pid, why)
            self._reported = state

    def _last_lines(self, old: Lifecycle, event: Event) -> tuple[str, ...]:
        """Return the end of the log, if a process has just crashed."""
        if isinstance(event, StartFailed) or not has_crashed(old, self.life):
            return ()
        return last_lines(self.spec.log_path, _SHOWN_LINES, self._process.log_start_bytes)

    def _exited(self, code: int | None, alone: bool) -> None:
        if alone:
            self.child = None
        self._take_end(Exited(self.life.generation, code, alone))

    def _gone(self) -> None:
        self.child = None
        self._take_end(Gone(self.life.generation))

    def _take_end(self, end: Exited | Gone) -> None:
        # An end is reported only once; handling it a second time changes nothing.
        self._retrier.run("act on its end", partial(self.handle, end))
        self._context.groups.leave(self.spec.name)

    def _verdict(self, event: Event) -> tuple[str, ...]:
        """Return how its limits contributed to its end, in words; nothing if they did not."""
        groups, spec = self._context.groups, self.spec
        verdict = groups.verdict(spec.name, spec.limits) if isinstance(event, Exited) else ""
        return (verdict,) if verdict else ()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = due_ns(self.life, self.spec.policy)
        if due is not None and not self._closed:
            seconds = max(due - self._context.clock(), 0) / 1e9
            self._timer = self._loop.call_later(seconds, self._on_timer, due)

    def _on_timer(self, due: int) -> None:
        """Act on a deadline, but not while the death of its process cannot be handled yet."""
        if not self._deaths.check_now():
            self._timer = self._loop.call_later(RETRY_SECONDS, self._on_timer, due)
            return
        late = self._context.clock() - due > to_ns(LATE_SECONDS)
        self.handle(Unwatched() if late else Tick())
