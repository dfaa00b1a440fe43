"""What becomes of a worker whose process has outlived the daemon that kept it."""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.lifecycle.state import Decision, Life, Signal, WorkerState


def wanted_anew(life: Life, now_ns: int) -> Life:
    """Somebody asks for it: it starts as soon as nothing of it is left, its crashes forgiven."""
    forgiven = replace(life, streak=0, crashes_ns=(), retry_ns=now_ns, restarting=False)
    return forgiven.into(WorkerState.BACKOFF, now_ns)


def lives_on(life: Life, now_ns: int) -> Decision:
    """Go on with a process that still runs; it is wanted, as the node file names it.

    One that nobody had told to end is only looked at again: `starting` until a probe says that it
    is healthy. A drain that was under way is called off, unless it is for a restart. One that had
    been told to end is told again, as nobody knows whether the signal was sent, and started anew
    when it has gone; one that is paused is told nothing.
    """
    if life.restarting and life.sent is None:
        return Decision(replace(life, since_ns=now_ns), notes=("adopted while it drains",))
    if life.sent is None:
        served = life.served or life.state in (WorkerState.READY, WorkerState.DRAINING)
        # Its deadline begins anew: nobody looked at it meanwhile.
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
    told = replace(life, sent_ns=now_ns)
    if life.state is WorkerState.DRAINING:
        told = wanted_anew(told, now_ns)
    if told.paused_ns is not None:
        return Decision(told, notes=("adopted while it ends, and paused",))
    note = f"adopted while it ends: {life.sent.name} to the group again"
    return Decision(told, (Signal(life.incarnation, life.sent),), (note,))
