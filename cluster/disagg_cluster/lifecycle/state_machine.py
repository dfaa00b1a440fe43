"""Decides the next step for one worker from its life so far, an event and the time.

Pure: no clock, no process, no randomness. For events in any order, late or twice:

* a process is started only when nothing is left of the previous one (`presence` is gone);
* events of an older generation change nothing;
* any exit that we did not ask for is a crash, exit code 0 included (a vLLM whose core was
  killed leaves like that);
* once a stop is requested, nothing starts until a start is requested, and it ends in `stopped`:
  the group gets SIGTERM after the drain and SIGKILL after the stop deadline, again and again;
* while it is paused nothing is started or signalled, until a stop is requested;
* a worker that keeps crashing ends in `failed`, after `crash_limit` crashes at most, and is tried
  again now and then;
* a start that the system refused, or that was never made, is no crash: it is retried for ever;
* a worker that does its work, or that could not be watched, is not ended for its silence.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.deadlines import due_ns, ready_seconds
from disagg_cluster.lifecycle.state import (
    KILL,
    TERM,
    Decision,
    Drained,
    Event,
    Exited,
    Gone,
    Health,
    Lifecycle,
    PauseRequested,
    Presence,
    Probed,
    RestartRequested,
    Resumed,
    Signal,
    Start,
    StartFailed,
    StartRequested,
    StopRequested,
    UnpauseRequested,
    Unwatched,
    WorkerState,
)
from disagg_cluster.lifecycle.transitions import (
    crashed,
    died_while_paused,
    hangs,
    is_frozen,
    lives_on,
    not_started,
    pause,
    probed,
    refused,
    restart_refusal,
    unpause,
    unwatched,
    wanted_anew,
)
from disagg_exporter.model.counted import counted


def decide(
    life: Lifecycle, event: Event, now_ns: int, policy: RestartPolicy, jitter: float
) -> Decision:
    """Process one event, then all that is due by now.

    Args:
        life: The worker's lifecycle.
        event: What happened; `Tick` if only time passed.
        now_ns: CLOCK_MONOTONIC.
        policy: Deadlines and limits.
        jitter: A number in 0..1, drawn by the caller, that shortens a back-off begun now.
    """
    received = _receive(life, event, now_ns, policy, jitter)
    due = due_ns(received.life, policy)
    if due is None or now_ns < due:
        return received
    acted = _act(received.life, now_ns, policy, jitter)
    return Decision(acted.life, received.actions + acted.actions, received.notes + acted.notes)


def _receive(
    life: Lifecycle, event: Event, now_ns: int, policy: RestartPolicy, jitter: float
) -> Decision:
    match event:
        case StartRequested():
            return _start_requested(life, now_ns)
        case StopRequested():
            return _stop_requested(replace(life, restarting=False), event.drain, now_ns)
        case RestartRequested():
            return _restart_requested(life, event.drain, now_ns)
        case PauseRequested():
            return pause(life, now_ns)
        case UnpauseRequested():
            return _unpause_requested(life, now_ns)
        case StartFailed() if _is_running(life, event.generation):
            if event.refused and not _is_ending(life):
                waiting, then = refused(life, now_ns, policy, jitter)
                # It has not stopped waiting: who asks is to see for how long.
                since_ns = now_ns if event.since_ns is None else event.since_ns
                waiting = replace(waiting, since_ns=since_ns)
                return Decision(waiting, notes=(f"{event.why}, {then}",))
            return _leader_died(life, event.why, True, now_ns, policy, jitter)
        case Exited() if _is_running(life, event.generation):
            why = _exit_text(event.code, _is_ending(life))
            ran = replace(life, refusals=0)
            return _leader_died(ran, why, event.alone, now_ns, policy, jitter)
        case Gone() if _is_leftover(life, event.generation):
            return Decision(_without_process(life, now_ns), notes=("nothing is left of it",))
        case Probed() if _is_running(life, event.generation) and life.last_signal is None:
            return _probed(life, event, now_ns, policy, jitter)
        case Unwatched():
            return Decision(unwatched(life, now_ns, policy))
        case Drained() if _is_running(life, event.generation) and life.last_signal is None:
            draining = life.state is WorkerState.DRAINING
            return _send(life, TERM, now_ns, "drained") if draining else Decision(life)
        case Resumed() if life.generation == event.generation:
            return _resumed(life, event, now_ns, policy, jitter)
        case _:
            return Decision(life)


def _resumed(
    life: Lifecycle, event: Resumed, now_ns: int, policy: RestartPolicy, jitter: float
) -> Decision:
    if life.presence is Presence.GONE:
        return Decision(life)
    if event.presence is Presence.RUNNING:
        return lives_on(life, now_ns)
    alone = event.presence is Presence.GONE
    if alone and not event.started and not _is_ending(life):
        return Decision(not_started(life, now_ns), notes=("its start was never made",))
    if life.state is WorkerState.DRAINING and event.wanted and not alone:
        # The stop concerned the previous daemon: when the rest has ended, it starts anew.
        life = wanted_anew(replace(life, presence=Presence.LEFTOVER), now_ns)
    if life.presence is Presence.RUNNING:
        return _leader_died(life, "ended while no daemon ran", alone, now_ns, policy, jitter)
    if alone:
        return Decision(_without_process(life, now_ns), notes=("nothing is left of it",))
    if is_frozen(life):
        return Decision(life, notes=("others of its group are left",))
    return _send(life, life.last_signal or TERM, now_ns, "others of its group are left")


def _act(life: Lifecycle, now_ns: int, policy: RestartPolicy, jitter: float) -> Decision:
    """Take the action that was due at `due_ns`."""
    if life.presence is Presence.GONE:
        return _start(life, now_ns)
    if life.last_signal is not None:
        why = (
            "did not end at SIGTERM" if life.last_signal is TERM else "is still there after SIGKILL"
        )
        return _send(life, KILL, now_ns, why)
    if life.state is WorkerState.STARTING:
        last = f" ({life.probe_why})" if life.probe_why else ""
        why = f"not ready within {ready_seconds(life, policy):g} s{last}"
        fallen, then = crashed(life, now_ns, policy, jitter)
        return _send(fallen, TERM, now_ns, f"{why}, {then}")
    return _send(life, TERM, now_ns, f"still busy after {policy.drain_seconds:g} s of draining")


def _start(life: Lifecycle, now_ns: int) -> Decision:
    started = replace(
        life.into(WorkerState.STARTING, now_ns),
        presence=Presence.RUNNING,
        generation=life.generation + 1,
        last_signal=None,
        up=None,
        failed_probes=0,
        probe_why="",
        left_alone=False,
        patient_until_ns=0,
        served=False,
        restarts=life.restarts + (life.consecutive_crashes > 0),
    )
    since_ns = life.since_ns if life.state is WorkerState.BACKOFF else now_ns
    start = Start(started.generation, since_ns)
    return Decision(started, (start,), (f"start {started.generation}",))


def _start_requested(life: Lifecycle, now_ns: int) -> Decision:
    if life.state is WorkerState.DRAINING:
        return Decision(life, notes=("start refused: it is being stopped",))
    if life.state not in (WorkerState.STOPPED, WorkerState.FAILED):
        return Decision(life)
    return Decision(wanted_anew(life, now_ns))


def _stop_requested(life: Lifecycle, drain: bool, now_ns: int) -> Decision:
    if life.presence is Presence.GONE:
        notes = () if life.state is WorkerState.STOPPED else ("stopped",)
        return Decision(life.into(WorkerState.STOPPED, now_ns), notes=notes)
    draining = life.into(WorkerState.DRAINING, now_ns)
    serving = life.state in (WorkerState.READY, WorkerState.DRAINING)
    if life.last_signal is not None or (serving and drain):
        return Decision(draining, notes=() if draining is life else ("asked to stop",))
    return _send(draining, TERM, now_ns, "asked to stop")


def _restart_requested(life: Lifecycle, drain: bool, now_ns: int) -> Decision:
    if refusal := restart_refusal(life):
        return Decision(life, notes=(f"restart refused: {refusal}",))
    if life.state in (WorkerState.STOPPED, WorkerState.BACKOFF, WorkerState.FAILED):
        return Decision(wanted_anew(life, now_ns), notes=("asked to restart",))
    ending = _stop_requested(life, drain, now_ns)
    return replace(ending, life=replace(ending.life, restarting=True))


def _unpause_requested(life: Lifecycle, now_ns: int) -> Decision:
    resumed = unpause(life, now_ns)
    left = life.presence is Presence.LEFTOVER
    ending = life.presence is Presence.RUNNING and life.last_signal is not None
    if life.paused_ns is None or not (left or ending):
        return resumed
    why = f"{resumed.notes[0]}; {'others of its group are left' if left else 'it was ending'}"
    return _send(resumed.life, life.last_signal or TERM, now_ns, why)


def _leader_died(
    life: Lifecycle, why: str, alone: bool, now_ns: int, policy: RestartPolicy, jitter: float
) -> Decision:
    if not _is_ending(life):
        life, then = crashed(life, now_ns, policy, jitter)
        if is_frozen(life):
            life, then = died_while_paused(life, now_ns)
        why = f"{why}, {then}"
    if alone:
        return Decision(_without_process(life, now_ns), notes=(why,))
    left = replace(life, presence=Presence.LEFTOVER)
    if is_frozen(left):
        return Decision(left, notes=(f"{why}; others of its group are left",))
    return _send(left, life.last_signal or TERM, now_ns, f"{why}; others of its group are left")


def _probed(
    life: Lifecycle, event: Probed, now_ns: int, policy: RestartPolicy, jitter: float
) -> Decision:
    seen, notes = probed(life, event, now_ns, policy)
    if event.health is Health.HEALTHY and life.state is WorkerState.STARTING:
        ready = replace(seen.into(WorkerState.READY, now_ns), served=False)
        return Decision(ready, notes=(event.why,))
    if not hangs(seen, now_ns, policy):
        return Decision(seen, notes=notes)
    fallen, then = crashed(seen, now_ns, policy, jitter)
    why = f"hangs: {counted(seen.failed_probes, 'probe')} failed, the last one: {event.why}, {then}"
    return _send(fallen, KILL, now_ns, why)


def _send(life: Lifecycle, sign: signal.Signals, now_ns: int, why: str) -> Decision:
    sent = replace(life, last_signal=sign, last_signal_ns=now_ns)
    return Decision(sent, (Signal(life.generation, sign),), (f"{why}: {sign.name} to the group",))


def _without_process(life: Lifecycle, now_ns: int) -> Lifecycle:
    gone = replace(life, presence=Presence.GONE)
    if life.state is not WorkerState.DRAINING:
        return gone
    return wanted_anew(gone, now_ns) if life.restarting else gone.into(WorkerState.STOPPED, now_ns)


def _is_running(life: Lifecycle, generation: int) -> bool:
    return life.presence is Presence.RUNNING and life.generation == generation


def _is_leftover(life: Lifecycle, generation: int) -> bool:
    return life.presence is Presence.LEFTOVER and life.generation == generation


def _is_ending(life: Lifecycle) -> bool:
    return life.last_signal is not None or life.state is WorkerState.DRAINING


def _exit_text(code: int | None, asked: bool) -> str:
    ended = "ended" if asked else "ended unasked"
    if code is None:
        return f"{ended}, exit code not known"
    if code < 0:
        return f"{ended} by signal {-code} ({signal.strsignal(-code)})"
    return f"{ended} with exit code {code}"
