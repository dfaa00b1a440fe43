"""What is to be done about a request: orders for the supervisor, or a refusal with the way out.

Pure: a request and the view of the node give the decision. Nothing is done that the supervisor
would refuse, so that whoever asks learns why and what to do instead.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from disagg_cluster.control.messages import (
    NodeOverview,
    PauseWorkers,
    RestartWorker,
    ResumeWorkers,
    Verb,
    WorkerView,
    text_of,
)
from disagg_cluster.lifecycle.state import WorkerState

_ATTACHED = "engines that somebody else starts are only ever observed"


@dataclass(frozen=True, slots=True)
class ControlRefusal:
    """Nothing is done: why, and what to do instead."""

    why: str
    way_out: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the supervisor is to do to which workers, and what is said of it.

    Without a worker it is done already. What `takes_time` has an end that can be waited for.
    """

    verb: Verb
    workers: tuple[str, ...]
    text: str
    takes_time: bool = False


def decide(
    verb: PauseWorkers | ResumeWorkers | RestartWorker, node: NodeOverview
) -> Orders | ControlRefusal:
    """Decide about a change by how the node stands."""
    if node.daemon.stopping:
        return ControlRefusal("the daemon is stopping", "ask the next one, once it serves")
    if verb.worker is None:
        chosen = node.workers
        if not chosen:
            return ControlRefusal("this node launches no workers", _ATTACHED)
    else:
        worker = node.worker(verb.worker)
        if worker is None:
            return _unknown(verb.worker, node)
        chosen = (worker,)
    match verb:
        case PauseWorkers():
            return _pause(verb, chosen)
        case ResumeWorkers():
            return _resume(verb, chosen)
        case RestartWorker():
            return _restart(verb, chosen[0])


def _unknown(name: str, node: NodeOverview) -> ControlRefusal:
    names = [worker.worker for worker in node.workers]
    if not names:
        return ControlRefusal(f"no worker {name!r}: this node launches none", _ATTACHED)
    close = difflib.get_close_matches(name, names, 1)
    meant = f"did you mean {close[0]}? " if close else ""
    return ControlRefusal(f"no worker {name!r}", f"{meant}the workers are {_listed(names)}")


def _pause(verb: PauseWorkers, chosen: tuple[WorkerView, ...]) -> Orders | ControlRefusal:
    stopped = [worker.worker for worker in chosen if worker.being_stopped]
    if len(stopped) == len(chosen):
        return ControlRefusal(f"{_listed(stopped)}: being stopped", "wait until that has ended")
    todo = [w.worker for w in chosen if not w.paused and not w.being_stopped]
    if not todo:
        return Orders(verb, (), f"{_subject(verb, chosen)} already paused")
    return Orders(verb, tuple(todo), f"paused: {_listed(todo)}")


def _resume(verb: ResumeWorkers, chosen: tuple[WorkerView, ...]) -> Orders:
    todo = [worker.worker for worker in chosen if worker.paused]
    if not todo:
        return Orders(verb, (), f"{_subject(verb, chosen)} not paused")
    died = [
        w.worker for w in chosen if w.paused and w.pid is None and w.state is WorkerState.BACKOFF
    ]
    started = f"; started, as it is not running: {_listed(died)}" if died else ""
    return Orders(verb, tuple(todo), f"supervised again: {_listed(todo)}{started}")


def _restart(verb: RestartWorker, worker: WorkerView) -> Orders | ControlRefusal:
    name = worker.worker
    if worker.paused:
        return ControlRefusal(f"{name} is paused", f"disagg-node resume {name}, then restart it")
    if worker.being_stopped:
        return ControlRefusal(f"{name} is being stopped", "wait until that has ended")
    return Orders(verb, (name,), f"{text_of(verb)} begun", takes_time=True)


def _subject(verb: PauseWorkers | ResumeWorkers, chosen: tuple[WorkerView, ...]) -> str:
    return "all workers are" if verb.worker is None else f"{chosen[0].worker} is"


def _listed(names: list[str]) -> str:
    return ", ".join(names)
