"""Decides the next step of a worker's move to another role, from its state and the time.

Pure: no clock, no process, no router. For all observations, in any order and by any daemon:

* a process is ended only after the router has released it and its last request has ended, and while
  that can be recorded; a drain that takes too long is called off, and the worker stays in its role;
* it leaves its old role only while others serve that;
* it is `done` only when the phase of its new role has used GPU-seconds since it joined there;
* a worker that does not become ready, or shows no effect in time, returns to its old role;
* orders follow from the move and the sight alone, so that a daemon killed between recording
  and acting is followed by one that acts again, and nothing is done twice.
"""

from __future__ import annotations

from dataclasses import replace

from disagg_cluster.lifecycle.reassignment.progress import (
    Moved,
    MoveOrder,
    MoveStep,
    PhaseSeconds,
    Reassignment,
    SwitchAnswer,
    WorkerSight,
)
from disagg_cluster.lifecycle.state import WorkerState, to_ns

PROOF_SECONDS = 0.002
"""GPU-seconds that the new role's phase must have used: more than noise, less than a probe."""

PROOF_SHARE = 0.2
"""Their least share of the worker's use in all phases since then.

A decode engine recomputes one token of each prompt, which is prefill: a false switch does no more.
"""

_UNTOLD = "the router does not tell its engines"
_UNTOUCHED = (MoveStep.LEAVING, MoveStep.DRAINING)


def advance_move(move: Reassignment, sight: WorkerSight, now_ns: int) -> Moved:
    """Advance a move that is under way by one step if its condition is met."""
    if move.step.final:
        return Moved(move)
    if sight.being_stopped or sight.state is WorkerState.STOPPED:
        return Moved(_ended(move, MoveStep.FAILED, "called off by a stop", now_ns))
    if sight.needed and move.step in _UNTOUCHED and not move.undone:
        # Its peers were there when the move was asked for.
        return _give_up(move, sight.needed, now_ns)
    match move.step:
        case MoveStep.LEAVING:
            return _leaving(move, sight, now_ns)
        case MoveStep.DRAINING:
            return _draining(move, sight, now_ns)
        case MoveStep.SWITCHING:
            return _switching(move, sight, now_ns)
        case MoveStep.JOINING:
            return _joining(move, sight, now_ns)
        case _:
            return _proving(move, sight, now_ns)


def resumed(move: Reassignment, now_ns: int) -> Reassignment:
    """Return the move as the next daemon takes it up: nothing was watched, patience begins anew.

    The effect observed before is not relied on: it is measured again.
    """
    if move.step.final:
        return move
    return replace(move, since_ns=now_ns, base_seconds=None, probed_ns=0)


def _leaving(move: Reassignment, sight: WorkerSight, now_ns: int) -> Moved:
    if not sight.has_router or (sight.router_known and sight.routed_as is None):
        return Moved(move.into(MoveStep.DRAINING, now_ns))
    if not _is_late(move, now_ns):
        return Moved(move)
    if move.undone:
        # Even if it still sends requests there: the worker cannot stay in a role it does not fill.
        return Moved(move.into(MoveStep.DRAINING, now_ns))
    why = "the router does not let it go" if sight.router_known else _UNTOLD
    return _give_up(move, why, now_ns)


def _draining(move: Reassignment, sight: WorkerSight, now_ns: int) -> Moved:
    if sight.unwritten:
        return _give_up(move, sight.unwritten, now_ns) if _is_late(move, now_ns) else Moved(move)
    if sight.state in (WorkerState.BACKOFF, WorkerState.FAILED):
        # It died: no engine is there to be asked, and the next one starts in its new role.
        died = replace(_drained(move, now_ns), in_place=False)
        return _switch(died, sight, now_ns)
    if sight.idle:
        return _switch(_drained(move, now_ns), sight, now_ns)
    if not _is_late(move, now_ns):
        return Moved(move)
    if move.undone:
        return _switch(move, sight, now_ns)
    seconds = move.patience.drain_seconds
    return _give_up(move, f"{sight.remaining} after {seconds:g} s", now_ns)


def _drained(move: Reassignment, now_ns: int) -> Reassignment:
    if move.undone:
        return move
    return replace(move, drain_seconds=(now_ns - move.began_ns) / 1e9)


def _switch(move: Reassignment, sight: WorkerSight, now_ns: int) -> Moved:
    """Begin to bring the worker into the role that it is heading for."""
    begun = replace(move.into(MoveStep.SWITCHING, now_ns), beyond=sight.incarnation)
    return Moved(begun, (MoveOrder.SWITCH if begun.in_place else MoveOrder.RESTART,))


def _switching(move: Reassignment, sight: WorkerSight, now_ns: int) -> Moved:
    anew = sight.incarnation > move.beyond
    serves = sight.state is WorkerState.READY and sight.role is move.heading
    if serves and (anew or move.in_place):
        return Moved(move.into(MoveStep.JOINING, now_ns))
    if sight.paused:
        return _give_up(move, "called off by a pause", now_ns)
    if sight.state is WorkerState.FAILED and anew:
        return _give_up(move, f"failed as {move.heading}: {sight.reason}", now_ns)
    if move.in_place and sight.answer is SwitchAnswer.REFUSED:
        return _give_up(move, f"the engine did not switch: {sight.answer_text}", now_ns)
    if _is_late(move, now_ns):
        seconds = move.patience.start_seconds
        why = f"not ready as {move.heading} within {seconds:g} s ({sight.reason})"
        return _give_up(move, why, now_ns)
    if anew or sight.restarting:
        return Moved(move)
    if not move.in_place:
        return Moved(move, (MoveOrder.RESTART,))
    return Moved(move, (MoveOrder.SWITCH,) if sight.answer is SwitchAnswer.NONE else ())


def _joining(move: Reassignment, sight: WorkerSight, now_ns: int) -> Moved:
    serves = sight.state is WorkerState.READY and sight.role is move.heading
    routed = sight.router_known and sight.routed_as is move.heading
    if not (serves and (routed or not sight.has_router)):
        if not _is_late(move, now_ns):
            return Moved(move)
        return _give_up(move, _not_joined(move, sight, serves=serves), now_ns)
    if move.undone:
        return Moved(_ended(move, MoveStep.ROLLED_BACK, move.why, now_ns))
    drained_ns = move.began_ns + to_ns(move.drain_seconds or 0.0)
    seconds = max(now_ns - drained_ns, 0) / 1e9
    proving = replace(move.into(MoveStep.PROVING, now_ns), downtime_seconds=seconds)
    return Moved(replace(proving, base_seconds=sight.phase_seconds))


def _not_joined(move: Reassignment, sight: WorkerSight, *, serves: bool) -> str:
    if not serves:
        return f"{sight.state} as {move.heading}"
    return "the router does not take it" if sight.router_known else _UNTOLD


def _proving(move: Reassignment, sight: WorkerSight, now_ns: int) -> Moved:
    if move.base_seconds is None and sight.phase_seconds is not None:
        move = replace(move, base_seconds=sight.phase_seconds)
    if sight.role is move.heading and _is_proven(move, sight):
        seconds = (now_ns - move.since_ns) / 1e9
        return Moved(_ended(replace(move, effect_seconds=seconds), MoveStep.DONE, "", now_ns))
    if _is_late(move, now_ns):
        return _give_up(move, _unproven(move, sight), now_ns)
    asked_ns = max(move.since_ns, move.probed_ns)
    due = now_ns - asked_ns >= to_ns(move.patience.probe_seconds)
    if due and sight.state is WorkerState.READY:
        return Moved(replace(move, probed_ns=now_ns), (MoveOrder.PROBE,))
    return Moved(move)


def _is_proven(move: Reassignment, sight: WorkerSight) -> bool:
    if move.base_seconds is None or sight.phase_seconds is None or not sight.tells_phases:
        return False
    return any(
        used >= PROOF_SECONDS and used >= PROOF_SHARE * whole for used, whole in _since(move, sight)
    )


def _since(move: Reassignment, sight: WorkerSight) -> list[PhaseSeconds]:
    """Return what it used since proving began, in each way in which that is known."""
    both = zip(sight.phase_seconds or (), move.base_seconds or (), strict=False)
    return [(now[0] - before[0], now[1] - before[1]) for now, before in both]


def _unproven(move: Reassignment, sight: WorkerSight) -> str:
    seconds = move.patience.proof_seconds
    if sight.phase_seconds is None or move.base_seconds is None or not sight.tells_phases:
        return f"unproven: what it does as {move.heading} cannot be determined from its telemetry"
    used, whole = max(_since(move, sight), default=(0.0, 0.0))
    seen = f"{used:.3f} of {whole:.3f} GPU-seconds were {move.heading}"
    trouble = f"; {sight.probe_trouble}" if sight.probe_trouble else ""
    return f"unproven: {seen} within {seconds:g} s{trouble}"


def _give_up(move: Reassignment, why: str, now_ns: int) -> Moved:
    """Turn back; a failure on the way back is left for a person to fix."""
    if move.undone:
        return Moved(
            _ended(move, MoveStep.FAILED, f"{move.why}; and on the way back: {why}", now_ns)
        )
    back = replace(move, undone=True, why=why, in_place=False)
    step = MoveStep.JOINING if move.step in _UNTOUCHED else MoveStep.LEAVING
    return Moved(back.into(step, now_ns))


def _ended(move: Reassignment, step: MoveStep, why: str, now_ns: int) -> Reassignment:
    return replace(move.into(step, now_ns), why=why)


def _is_late(move: Reassignment, now_ns: int) -> bool:
    return now_ns - move.since_ns >= to_ns(move.deadline_seconds)
