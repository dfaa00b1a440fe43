"""Effects on a worker of a crash, a refused start, a pause, silence or another daemon.

A paused worker is observed: its state and its death are reported, and nothing is done about them.
Only a stop is obeyed. The pause stays in the journal until somebody ends it, even if the worker or
the daemon dies, or the worker is stopped.

Three outcomes of a probe are distinguished: a good answer; no answer, which counts against the
worker unless it finished a step or a request meanwhile; and a probe that could not be made, which
proves nothing.
"""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.state import (
    Decision,
    Health,
    Lifecycle,
    Presence,
    Probed,
    Signal,
    WorkerState,
    to_ns,
)

# 2.0 ** 1024 overflows; no back-off needs more doublings than this to reach its maximum.
_MAX_DOUBLINGS = 64

# A start that the system refused is soon retried, without the policy's delay after crashes: the
# engine does not need the rest. Never at once, though: the refusal may come as fast.
_LEAST_REFUSED_SECONDS, _MOST_REFUSED_SECONDS = 0.5, 10.0
# Slow probes soon take as long as all of the policy's quick ones: fewer prove no hang.
_LEAST_PROBES = 3


def backoff_seconds(consecutive_crashes: int, policy: RestartPolicy, jitter: float) -> float:
    """Return how long the restart after so many crashes in a row waits; at most the maximum.

    Args:
        consecutive_crashes: Crashes since the worker was last steady, this one included.
        policy: First wait, factor, maximum and share of jitter.
        jitter: 0 for the whole wait, 1 for the wait less all of its jitter.
    """
    doublings = min(max(consecutive_crashes - 1, 0), _MAX_DOUBLINGS)
    full = policy.backoff_first_seconds * policy.backoff_factor**doublings
    return min(full, policy.backoff_max_seconds) * (1.0 - policy.backoff_jitter_ratio * jitter)


def crashed(
    life: Lifecycle, now_ns: int, policy: RestartPolicy, jitter: float
) -> tuple[Lifecycle, str]:
    """Count a crash now; return the life, in `backoff` or `failed`, and the reason.

    Two counts can make it fail. That of crashes in a row catches an engine that needs minutes to
    come up and dies each time, that of the window one that comes up well and never lasts.
    """
    ready_ns = now_ns - life.since_ns if life.state is WorkerState.READY else -1
    steady = ready_ns >= to_ns(policy.steady_seconds)
    # A worker that was given up and retried needs no more than the limit to be given up anew.
    consecutive_crashes = 1 if steady else min(life.consecutive_crashes + 1, policy.crash_limit)
    window_ns = now_ns - to_ns(policy.crash_window_seconds)
    crashes_ns = (*(t for t in life.crashes_ns if t > window_ns), now_ns)[-policy.crash_limit :]
    counted = replace(life, consecutive_crashes=consecutive_crashes, crashes_ns=crashes_ns)

    crashes = max(consecutive_crashes, len(crashes_ns))
    if crashes >= policy.crash_limit:
        failed = counted.into(WorkerState.FAILED, now_ns)
        retry = policy.failed_retry_seconds
        again = f", tried again after {retry:g} s" if retry > 0 else ""
        return failed, f"given up after {crashes} {'crash' if crashes == 1 else 'crashes'}{again}"
    seconds = backoff_seconds(consecutive_crashes, policy, jitter)
    waiting = counted.into(WorkerState.BACKOFF, now_ns)
    return replace(waiting, retry_ns=now_ns + to_ns(seconds)), f"next start in {seconds:.1f} s"


def not_started(life: Lifecycle, now_ns: int, wait_ns: int = 0) -> Lifecycle:
    """Return the life after a start that was decided and never made: no crash, no restart."""
    # `restarts` was raised when the start was decided.
    unmade = replace(
        life, presence=Presence.GONE, restarts=life.restarts - (life.consecutive_crashes > 0)
    )
    return replace(unmade.into(WorkerState.BACKOFF, now_ns), retry_ns=now_ns + wait_ns)


def refused(
    life: Lifecycle, now_ns: int, policy: RestartPolicy, jitter: float
) -> tuple[Lifecycle, str]:
    """Return the life after a start that the system refused, and why; it is retried for ever."""
    refusals = life.refusals + 1
    usual = backoff_seconds(refusals, policy, jitter)
    seconds = min(max(usual, _LEAST_REFUSED_SECONDS), _MOST_REFUSED_SECONDS)
    waiting = replace(not_started(life, now_ns, to_ns(seconds)), refusals=refusals)
    return waiting, f"not counted as a crash, tried again in {seconds:.1f} s"


def wanted_anew(life: Lifecycle, now_ns: int) -> Lifecycle:
    """Return the life of a requested worker: it starts once nothing is left, crashes forgiven."""
    forgiven = replace(
        life, consecutive_crashes=0, crashes_ns=(), retry_ns=now_ns, restarting=False
    )
    return forgiven.into(WorkerState.BACKOFF, now_ns)


def lives_on(life: Lifecycle, now_ns: int) -> Decision:
    """Continue with a process that still runs; it is wanted, as the node file names it.

    A process that had not been asked to end is only probed again: `starting` until a probe finds it
    healthy. A drain that was under way is called off, unless it is for a restart. A process that
    had been asked to end is signalled again, as the signal may not have been sent, and started anew
    when it has gone; if it is paused, it is not signalled.
    """
    if life.restarting and life.last_signal is None:
        return Decision(replace(life, since_ns=now_ns), notes=("adopted while it drains",))
    if life.last_signal is None:
        served = life.served or life.state in (WorkerState.READY, WorkerState.DRAINING)
        # Its deadline begins anew: nothing watched it meanwhile.
        looked_at = replace(
            life,
            state=WorkerState.STARTING,
            since_ns=now_ns,
            served=served,
            up=None,
            failed_probes=0,
            probe_why="",
            left_alone=False,
            patient_until_ns=0,
        )
        return Decision(looked_at, notes=("adopted from the daemon before",))
    noted = replace(life, last_signal_ns=now_ns)
    if life.state is WorkerState.DRAINING:
        noted = wanted_anew(noted, now_ns)
    if noted.paused_ns is not None:
        return Decision(noted, notes=("adopted while it ends, and paused",))
    note = f"adopted while it ends: {life.last_signal.name} to the group again"
    return Decision(noted, (Signal(life.generation, life.last_signal),), (note,))


def is_frozen(life: Lifecycle) -> bool:
    """Whether nothing is to be done about the worker: it is paused, with no stop requested."""
    return life.paused_ns is not None and life.state is not WorkerState.DRAINING


def pause(life: Lifecycle, now_ns: int) -> Decision:
    """Only observe the worker from now on; calls off a restart whose drain is under way."""
    if life.paused_ns is not None:
        return Decision(life)
    if life.state is WorkerState.DRAINING and not life.restarting:
        return Decision(life, notes=("pause refused: it is being stopped",))
    paused = replace(life, paused_ns=now_ns)
    if not life.restarting:
        return Decision(paused, notes=("paused: it is observed, and nothing else",))
    note = "paused: its restart is called off"
    # A signal cannot be undone: the worker will not be restarted automatically.
    state = WorkerState.READY if life.last_signal is None else WorkerState.BACKOFF
    called_off = replace(paused.into(state, now_ns), restarting=False, retry_ns=now_ns)
    return Decision(called_off, notes=(note,))


def unpause(life: Lifecycle, now_ns: int) -> Decision:
    """Supervise the worker again: deadlines begin anew, a waiting start is due now.

    Whether to send a signal is left to the caller.
    """
    if life.paused_ns is None:
        return Decision(life)
    starting = life.state is WorkerState.STARTING
    resumed = replace(
        life,
        paused_ns=None,
        since_ns=now_ns if starting else life.since_ns,
        retry_ns=now_ns,
        failed_probes=0,
        probe_why="",
    )
    return Decision(resumed, notes=("supervised again",))


def died_while_paused(life: Lifecycle, now_ns: int) -> tuple[Lifecycle, str]:
    """Return the life after a counted crash: it waits for the end of the pause; and the reason."""
    waiting = replace(life.into(WorkerState.BACKOFF, now_ns), retry_ns=now_ns)
    return waiting, "not started again while it is paused"


def restart_refusal(life: Lifecycle) -> str | None:
    """Why a restart by hand is refused now; None if it is not."""
    if life.paused_ns is not None:
        return "it is paused"
    if life.state is WorkerState.DRAINING and not life.restarting:
        return "it is being stopped"
    return None


def probed(
    life: Lifecycle, event: Probed, now_ns: int, policy: RestartPolicy
) -> tuple[Lifecycle, tuple[str, ...]]:
    """Apply one probe of the present process; return the life and what is new to log."""
    if event.health is Health.HEALTHY:
        blemished = life.refusals or life.failed_probes or life.probe_why or life.left_alone
        if life.up and not blemished:
            return life, ()  # nearly every probe: no copy for it
        again = life.up is False and life.state is WorkerState.READY
        well = replace(life, up=True, refusals=0, failed_probes=0, probe_why="", left_alone=False)
        return well, ("answers again",) if again else ()
    life = replace(life, refusals=0)
    first_start = life.state is WorkerState.STARTING and not life.served
    # Until it listens nothing can answer; those who wait learn how long that may take.
    expected = first_start and event.health is Health.NO_ANSWER
    known = expected or event.why == life.probe_why
    notes = () if known else (f"not healthy: {event.why}",)
    if event.health is Health.UNDECIDED:
        # Only an observed silence counts: its duration counts from here on.
        unsure = replace(life, up=None, probe_why=event.why, failing_since_ns=now_ns)
        return _more_time(unsure, now_ns, policy), notes
    failing = replace(life, up=False, probe_why=event.why)
    began_ns = now_ns if event.began_ns is None else event.began_ns
    since_ns = life.failing_since_ns if life.failed_probes else began_ns
    # Work of another process on its port is not its own.
    works = event.health is not Health.FOREIGN and (event.worked_ns or 0) > since_ns
    if works:
        noted = () if life.left_alone else ("it does its work and is left alone",)
        at_work = replace(failing, failed_probes=0, left_alone=True)
        return _more_time(at_work, now_ns, policy), notes + noted
    if life.state is WorkerState.READY and not is_frozen(life):
        count = life.failed_probes + 1
        failing = replace(failing, failed_probes=count, failing_since_ns=since_ns)
    return failing, notes


def hangs(life: Lifecycle, now_ns: int, policy: RestartPolicy) -> bool:
    """Whether a worker has neither answered nor done any work for too long."""
    if life.state is not WorkerState.READY or not life.failed_probes:
        return False
    if now_ns - life.since_ns < to_ns(policy.hang_grace_seconds):
        return False
    if life.failed_probes >= policy.hang_probes:
        return True
    patience_ns = to_ns((policy.hang_probes - 1) * policy.health_seconds)
    lasted = now_ns - life.failing_since_ns >= patience_ns
    return lasted and life.failed_probes >= _LEAST_PROBES


def unwatched(life: Lifecycle, now_ns: int, policy: RestartPolicy) -> Lifecycle:
    """Return the life after an unwatched time: earlier failures prove nothing now."""
    return _more_time(replace(life, failed_probes=0), now_ns, policy)


def _more_time(life: Lifecycle, now_ns: int, policy: RestartPolicy) -> Lifecycle:
    """Extend the patience of a start whose worker works, or could not be watched."""
    if life.state is not WorkerState.STARTING:
        return life
    return replace(life, patient_until_ns=now_ns + to_ns(policy.resume_seconds))
