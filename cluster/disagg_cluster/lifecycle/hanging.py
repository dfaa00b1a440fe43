"""Whether a worker that does not answer hangs, or is merely slow to answer while it works.

Pure. Three things are told apart: a good answer; no answer, which counts against the worker unless
it finished a step or a request meanwhile; and a probe that could not be made, which says nothing.
"""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.lifecycle.pausing import is_frozen
from disagg_cluster.lifecycle.state import Health, Life, Probed, WorkerState, to_ns

# Slow probes are soon as long as all of the policy's quick ones: fewer are no proof of a hang.
_LEAST_PROBES = 3


def probed(
    life: Life, event: Probed, now_ns: int, policy: RestartPolicy
) -> tuple[Life, tuple[str, ...]]:
    """Take in one probe of the present process; return the life and what is new to the log."""
    life = replace(life, refusals=0)
    if event.health is Health.HEALTHY:
        again = life.up is False and life.state is WorkerState.READY
        well = replace(life, up=True, failed_probes=0, probe_why="", left_alone=False)
        return well, ("answers again",) if again else ()
    notes = () if event.why == life.probe_why else (f"not healthy: {event.why}",)
    if event.health is Health.UNDECIDED:
        # Only a silence that was seen counts: how long it lasts is told from here on.
        unsure = replace(life, up=None, probe_why=event.why, failing_since_ns=now_ns)
        return _more_time(unsure, now_ns, policy), notes
    failing = replace(life, up=False, probe_why=event.why)
    began_ns = now_ns if event.began_ns is None else event.began_ns
    since_ns = life.failing_since_ns if life.failed_probes else began_ns
    # What a stranger on its port does is not its work.
    works = event.health is not Health.FOREIGN and (event.worked_ns or 0) > since_ns
    if works:
        told = () if life.left_alone else ("it does its work and is left alone",)
        at_work = replace(failing, failed_probes=0, left_alone=True)
        return _more_time(at_work, now_ns, policy), notes + told
    if life.state is WorkerState.READY and not is_frozen(life):
        count = life.failed_probes + 1
        failing = replace(failing, failed_probes=count, failing_since_ns=since_ns)
    return failing, notes


def hangs(life: Life, now_ns: int, policy: RestartPolicy) -> bool:
    """Whether a worker has neither answered nor done anything for too long."""
    if life.state is not WorkerState.READY or not life.failed_probes:
        return False
    if now_ns - life.since_ns < to_ns(policy.hang_grace_seconds):
        return False
    if life.failed_probes >= policy.hang_probes:
        return True
    patience_ns = to_ns((policy.hang_probes - 1) * policy.health_seconds)
    lasted = now_ns - life.failing_since_ns >= patience_ns
    return lasted and life.failed_probes >= _LEAST_PROBES


def unwatched(life: Life, now_ns: int, policy: RestartPolicy) -> Life:
    """The life after a time in which nobody could look: what came before proves nothing now."""
    return _more_time(replace(life, failed_probes=0), now_ns, policy)


def _more_time(life: Life, now_ns: int, policy: RestartPolicy) -> Life:
    """A start whose worker works, or could not be looked at, is not given up just now."""
    if life.state is not WorkerState.STARTING:
        return life
    return replace(life, patient_until_ns=now_ns + to_ns(policy.resume_seconds))
