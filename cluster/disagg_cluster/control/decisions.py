"""Decides on a request: orders for the supervisor, or a refusal that says what to do instead.

Pure: computed from the request and the view of the node. Anything that the supervisor would reject
is refused here, so that the client learns why and what to do instead.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from disagg_cluster.control.messages import (
    ChangeVerb,
    DrainWorker,
    PauseWorkers,
    ReassignWorker,
    RestartWorker,
    ResumeWorkers,
    text_of,
)
from disagg_cluster.control.refusal import ControlRefusal, RefusalReason
from disagg_cluster.control.role_decisions import drain_refusal, gap_refusal, move_refusal
from disagg_cluster.control.views import NodeOverview, WorkerView
from disagg_cluster.lifecycle.state import WorkerState

_ATTACHED = "engines that somebody else starts are only ever observed"

IS_STOPPING = ControlRefusal(
    RefusalReason.STOPPING, "the daemon is stopping", "ask the next one, once it serves"
)


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders for the supervisor, the workers they apply to, and the text of the reply.

    With no workers, there is nothing left to do. A change with `takes_time` can be waited for.
    """

    verb: ChangeVerb
    workers: tuple[str, ...]
    text: str
    takes_time: bool = False


def decide(verb: ChangeVerb, node: NodeOverview) -> Orders | ControlRefusal:
    """Decide on a change from the state of the node."""
    if node.daemon.stopping:
        return IS_STOPPING
    if verb.worker is None:
        chosen = node.workers
        if not chosen:
            return ControlRefusal(
                RefusalReason.NO_WORKERS, "this node launches no workers", _ATTACHED
            )
    else:
        worker = node.worker(verb.worker)
        if worker is None:
            return unknown_worker(verb.worker, node)
        chosen = (worker,)
    moving = _moving(verb, chosen, node)
    if moving is not None:
        return moving
    match verb:
        case PauseWorkers():
            return _pause(verb, chosen)
        case ResumeWorkers():
            return _resume(verb, chosen)
        case RestartWorker():
            return _restart(verb, chosen[0], node)
        case ReassignWorker():
            return _reassign(verb, chosen[0], node)
        case DrainWorker():
            return _drain(verb, chosen[0], node)


def unknown_worker(name: str, node: NodeOverview) -> ControlRefusal:
    """Refuses an unknown worker name and suggests the closest known one."""
    names = [worker.worker for worker in node.workers]
    if not names:
        why = f"no worker {name!r}: this node launches none"
        return ControlRefusal(RefusalReason.UNKNOWN_WORKER, why, _ATTACHED)
    close = difflib.get_close_matches(name, names, 1)
    meant = f"did you mean {close[0]}? " if close else ""
    way_out = f"{meant}the workers are {_listed(names)}"
    return ControlRefusal(RefusalReason.UNKNOWN_WORKER, f"no worker {name!r}", way_out)


def _pause(verb: PauseWorkers, chosen: tuple[WorkerView, ...]) -> Orders | ControlRefusal:
    stopped = [worker.worker for worker in chosen if worker.being_stopped]
    if len(stopped) == len(chosen):
        why = f"{_listed(stopped)}: being stopped"
        return ControlRefusal(RefusalReason.WORKER_BUSY, why, "wait until that has ended")
    todo = [w.worker for w in chosen if not w.paused and not w.being_stopped]
    if not todo:
        return Orders(verb, (), f"{_subject(verb, chosen)} already paused")
    return Orders(verb, tuple(todo), f"paused: {_listed(todo)}")


def _resume(verb: ResumeWorkers, chosen: tuple[WorkerView, ...]) -> Orders:
    todo = [worker.worker for worker in chosen if worker.paused]
    stay = ""
    if drained := [worker.worker for worker in chosen if worker.drained]:
        if verb.worker is not None and not todo:
            return Orders(verb, tuple(drained), f"gets requests again: {_listed(drained)}")
        # Somebody may be at work on a drained worker: only its name ends that.
        if verb.worker is None:
            stay = f"; drained until resumed by name: {_listed(drained)}"
    if not todo:
        text = "no worker is paused" if verb.worker is None else f"{chosen[0].worker} is not paused"
        return Orders(verb, (), f"{text}{stay}")
    died = [
        w.worker for w in chosen if w.paused and w.pid is None and w.state is WorkerState.BACKOFF
    ]
    started = f"; started, as it is not running: {_listed(died)}" if died else ""
    failed = [w.worker for w in chosen if w.paused and w.state is WorkerState.FAILED]
    given_up = f"; given up before, disagg-node restart starts it: {_listed(failed)}"
    text = f"supervised again: {_listed(todo)}{started}{given_up if failed else ''}"
    return Orders(verb, tuple(todo), f"{text}{stay}")


def _restart(
    verb: RestartWorker, worker: WorkerView, node: NodeOverview
) -> Orders | ControlRefusal:
    name = worker.worker
    if worker.paused:
        way_out = f"disagg-node resume {name}, then restart it"
        return ControlRefusal(RefusalReason.PAUSED, f"{name} is paused", way_out)
    if worker.being_stopped:
        why = f"{name} is being stopped"
        return ControlRefusal(RefusalReason.WORKER_BUSY, why, "wait until that has ended")
    if not verb.force and (refusal := gap_refusal(worker, node.workers, node.constraints)):
        way_out = f"{refusal.way_out}; --force restarts {name} all the same"
        return replace(refusal, way_out=way_out)
    return Orders(verb, (name,), f"{text_of(verb)} begun", takes_time=True)


def _moving(
    verb: ChangeVerb, chosen: tuple[WorkerView, ...], node: NodeOverview
) -> ControlRefusal | None:
    """Refuses changes to a worker while it is being reassigned."""
    move = node.move
    # An actual move is checked against every change in progress (in `changes`), not only moves.
    begins = isinstance(verb, ReassignWorker) and not verb.dry_run
    if move is None or move.step.final or begins:
        return None
    if isinstance(verb, PauseWorkers | ResumeWorkers) and all(
        worker.worker != move.worker for worker in chosen
    ):
        return None
    why = f"{move.worker} is being reassigned to {move.to_role} ({move.step})"
    way_out = f"disagg-node explain {move.worker} shows how far it has come"
    return ControlRefusal(RefusalReason.CHANGE_UNDER_WAY, why, way_out)


def _reassign(
    verb: ReassignWorker, worker: WorkerView, node: NodeOverview
) -> Orders | ControlRefusal:
    name = worker.worker
    if worker.role == verb.role and (node.move is None or node.move.step.final):
        return Orders(verb, (), f"{name} is a {verb.role} worker already")
    if refusal := move_refusal(verb, worker, node):
        return refusal
    if not verb.dry_run:
        return Orders(verb, (name,), f"{text_of(verb)} begun", takes_time=True)
    seconds = worker.drain_seconds if verb.drain_seconds is None else verb.drain_seconds
    gpus = f" with {_listed(list(worker.gpus))}" if worker.gpus else ""
    routed = "leave the router, " if node.constraints.membership else ""
    text = (
        f"{name} would {routed}end its requests within {seconds:g} s, serve {worker.model_name} as "
        f"{verb.role}{gpus} in place of {worker.role}, and be taken back if that shows no effect; "
        "nothing was done"
    )
    return Orders(verb, (), text)


def _drain(verb: DrainWorker, worker: WorkerView, node: NodeOverview) -> Orders | ControlRefusal:
    if worker.drained and worker.has_drained:
        return Orders(verb, (), f"{worker.worker} is drained already")
    if refusal := drain_refusal(worker, node):
        return refusal
    return Orders(verb, (worker.worker,), f"{text_of(verb)} begun", takes_time=True)


def _subject(verb: PauseWorkers | ResumeWorkers, chosen: tuple[WorkerView, ...]) -> str:
    return "all workers are" if verb.worker is None else f"{chosen[0].worker} is"


def _listed(names: list[str]) -> str:
    return ", ".join(names)
