"""What a pause does to a worker's life, and when a restart by hand is refused.

A paused worker is observed: its state and its death are told, and nothing is done about them. Only
a stop is obeyed. The pause stays in the journal until somebody ends it, also over the death of the
worker, of the daemon, and over a stop.
"""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.lifecycle.state import Decision, Life, WorkerState


def is_frozen(life: Life) -> bool:
    """Whether nothing is to be done about the worker: it is paused, and no stop was asked for."""
    return life.paused_ns is not None and life.state is not WorkerState.DRAINING


def pause(life: Life, now_ns: int) -> Decision:
    """Only observe the worker from now on; calls off a restart whose drain is under way."""
    if life.paused_ns is not None:
        return Decision(life)
    if life.state is WorkerState.DRAINING and not life.restarting:
        return Decision(life, notes=("pause refused: it is being stopped",))
    paused = replace(life, paused_ns=now_ns)
    if not life.restarting:
        return Decision(paused, notes=("paused: it is observed, and nothing else",))
    note = "paused: its restart is called off"
    # What was told to end cannot be told otherwise: it will not be started again by itself.
    state = WorkerState.READY if life.sent is None else WorkerState.BACKOFF
    called_off = replace(paused.into(state, now_ns), restarting=False, retry_ns=now_ns)
    return Decision(called_off, notes=(note,))


def unpause(life: Life, now_ns: int) -> Decision:
    """Supervise the worker again: deadlines begin anew, a start that waits is due now.

    Whether somebody is to be signalled is the caller's business.
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


def died_while_paused(life: Life, now_ns: int) -> tuple[Life, str]:
    """The life of a worker whose crash was counted: it waits for the end of the pause, and why."""
    waiting = replace(life.into(WorkerState.BACKOFF, now_ns), retry_ns=now_ns)
    return waiting, "not started again while it is paused"


def restart_refusal(life: Life) -> str | None:
    """Why a restart by hand is refused now; None if it is not."""
    if life.paused_ns is not None:
        return "it is paused"
    if life.state is WorkerState.DRAINING and not life.restarting:
        return "it is being stopped"
    return None
