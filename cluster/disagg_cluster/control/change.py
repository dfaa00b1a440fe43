"""A long-running change: its request and its progress.

Pure: progress is derived from the view of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.control.explanation import move_reply
from disagg_cluster.control.messages import (
    ControlReply,
    DrainWorker,
    LongVerb,
    ReassignWorker,
    ReplyOutcome,
    RestartWorker,
    Verb,
)
from disagg_cluster.control.views import NodeOverview, WorkerView
from disagg_cluster.lifecycle.reassignment.progress import ROLES, Patience
from disagg_cluster.lifecycle.state import WorkerState

_ROUTER_SECONDS = Patience().router_seconds


@dataclass(frozen=True, slots=True)
class Change:
    """A change in progress on the process numbered `incarnation`, until `deadline_ns`.

    `asked` holds the requests for it with their ids; `reported` is its last progress text.
    """

    id: str
    verb: LongVerb
    incarnation: int
    begun_ns: int
    deadline_ns: int
    asked: tuple[tuple[str, Verb], ...]
    reported: str = ""


def progress_of(change: Change, node: NodeOverview, now_ns: int) -> ControlReply:
    """Progress of a change at `now_ns`."""
    match change.verb:
        case RestartWorker():
            return _restarted(change, node, now_ns)
        case DrainWorker():
            return _drained(change, node, now_ns)
        case ReassignWorker():
            return _moved(change, node, now_ns)


def _moved(change: Change, node: NodeOverview, now_ns: int) -> ControlReply:
    move = node.move
    if move is None or move.id != change.id:
        text = f"{change.verb.worker}: nothing is known of its reassignment any more"
        return ControlReply(change.id, ReplyOutcome.FAILED, text, "look at the log of the daemon")
    reply = move_reply(move)
    if not reply.outcome.final and now_ns >= change.deadline_ns:
        text = f"{reply.text}; it goes on"
        way_out = f"disagg-node explain {move.worker} shows how it stands"
        return ControlReply(change.id, ReplyOutcome.TIMEOUT, text, way_out)
    return reply


def _drained(change: Change, node: NodeOverview, now_ns: int) -> ControlReply:
    name = change.verb.worker
    worker = node.worker(name)
    if worker is None or worker.being_stopped or worker.state is WorkerState.STOPPED:
        text = f"{name}: the drain was called off by a stop"
        return ControlReply(change.id, ReplyOutcome.FAILED, text)
    if not worker.drained:
        return ControlReply(change.id, ReplyOutcome.FAILED, f"{name}: the drain was called off")
    seconds = (now_ns - change.begun_ns) / 1e9
    if worker.has_drained:
        text = f"{name}: drained after {seconds:.1f} s; disagg-node resume {name} ends it"
        return ControlReply(change.id, ReplyOutcome.DONE, text)
    waits = worker.route_text or worker.left_text
    if now_ns >= change.deadline_ns:
        text = f"{name}: {waits} after {seconds:.0f} s; it goes on"
        way_out = f"disagg-node explain {name} shows how it stands"
        return ControlReply(change.id, ReplyOutcome.TIMEOUT, text, way_out)
    return ControlReply(change.id, ReplyOutcome.PROGRESS, f"{name}: {waits}")


def _restarted(change: Change, node: NodeOverview, now_ns: int) -> ControlReply:
    name = change.verb.worker
    worker = node.worker(name)

    def reply(outcome: ReplyOutcome, text: str, way_out: str = "") -> ControlReply:
        return ControlReply(change.id, outcome, f"{name}: {text}", way_out)

    if worker is None or worker.being_stopped or worker.state is WorkerState.STOPPED:
        return reply(ReplyOutcome.FAILED, "the restart was called off by a stop")
    if worker.paused:
        way_out = f"disagg-node resume {name}, then restart it"
        return reply(ReplyOutcome.FAILED, "the restart was called off by a pause", way_out)
    is_new = worker.incarnation > change.incarnation
    if is_new and worker.state is WorkerState.READY:
        if not _awaits_router(worker, node):
            seconds = (now_ns - change.begun_ns) / 1e9
            return replace(reply(ReplyOutcome.DONE, f"ready after {seconds:.1f} s"), worker=worker)
        if (seconds := worker.state_seconds) >= _ROUTER_SECONDS:
            text = f"ready, but for {seconds:.0f} s the router has sent it no requests"
            return reply(ReplyOutcome.TIMEOUT, text, f"disagg-node explain {name}")
        return reply(ReplyOutcome.PROGRESS, "ready, waits until the router sends it requests")
    if is_new and worker.state is WorkerState.FAILED:
        way_out = f"disagg-node logs {name} shows what it printed"
        return reply(ReplyOutcome.FAILED, f"failed, {worker.reason}", way_out)
    if now_ns >= change.deadline_ns:
        seconds = (change.deadline_ns - change.begun_ns) / 1e9
        text = f"{_stage(worker, is_new)}, not ready within {seconds:g} s; it goes on"
        return reply(ReplyOutcome.TIMEOUT, text, "disagg-node status shows how it stands")
    return reply(ReplyOutcome.PROGRESS, _stage(worker, is_new))


def _awaits_router(worker: WorkerView, node: NodeOverview) -> bool:
    """Whether the router still has to take it back: until then, its peers are not to be restarted.

    A worker that is drained by hand does not come back.
    """
    is_routed = node.constraints.membership == "live" and worker.role in ROLES
    return is_routed and not worker.drained and not worker.routed_as


def _stage(worker: WorkerView, is_new: bool) -> str:
    if worker.state is WorkerState.DRAINING:
        return "draining"
    if worker.state is WorkerState.STARTING and is_new:
        return f"starting (pid {worker.pid})"
    if worker.state is WorkerState.BACKOFF and is_new:
        return f"waits for its next start: {worker.reason}"
    return "ending"
