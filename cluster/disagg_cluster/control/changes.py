"""One change at a time, each once: what is under way, and what was answered before.

Pure: `take` receives each request, `advance` each change of the node and the passing of time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.control.change import Change, reached
from disagg_cluster.control.decisions import Orders, decide
from disagg_cluster.control.explanation import move_reply
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    DaemonStatus,
    DrainWorker,
    ExplainWorker,
    LongVerb,
    PauseWorkers,
    ReassignWorker,
    ReplyOutcome,
    RereadNodeFile,
    RestartWorker,
    ResumeWorkers,
    Verb,
    WatchStatus,
    text_of,
)
from disagg_cluster.control.refusal import ControlRefusal, RefusalReason
from disagg_cluster.control.views import NodeOverview, WorkerView
from disagg_cluster.lifecycle.reassignment.progress import Patience
from disagg_cluster.lifecycle.state import to_ns

REMEMBERED = 128
"""How many answered requests are known again by their ids."""

_MARGIN_SECONDS = 30.0
"""What a change may take beyond the deadlines of its worker."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered, so that asked again it is answered the same."""

    id: str
    verb: Verb
    reply: ControlReply


@dataclass(frozen=True, slots=True)
class Changes:
    """What is under way, and the requests answered last."""

    running: Change | None = None
    answered: tuple[Answered, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """What one request leads to: orders to give, and its answer; without one it waits.

    What it waits for is the running change. `again`: it was asked before, and nothing is done.
    """

    changes: Changes
    orders: Orders | None = None
    reply: ControlReply | None = None
    again: bool = False


def take(changes: Changes, request: ControlRequest, node: NodeOverview, now_ns: int) -> Taken:
    """Take in a request for a change.

    Asked again by the same id it is answered as before, also by a daemon that found the move of a
    worker in the journal. What is under way is not begun anew by another request for the same.
    While a change takes its time no other that does is begun.
    """
    verb, running = request.verb, changes.running
    assert not isinstance(verb, ExplainWorker | RereadNodeFile | DaemonStatus | WatchStatus)
    if again := _asked_before(changes, request) or _journalled(changes, request, node, now_ns):
        return again
    if running is not None and running.verb == verb and not isinstance(verb, RestartWorker):
        return _joined(changes, running, request, f"{text_of(verb)} begun")
    decided = decide(verb, node)
    if isinstance(decided, ControlRefusal):
        return Taken(changes, reply=refused(request, decided))
    rehearsed = isinstance(verb, ReassignWorker) and verb.dry_run
    if decided.takes_time or rehearsed:
        assert not isinstance(verb, PauseWorkers | ResumeWorkers)
        if busy := _busy(running, verb, node, now_ns):
            way_out = "one change at a time: try later"
            refusal = ControlRefusal(RefusalReason.CHANGE_UNDER_WAY, busy, way_out)
            return Taken(changes, reply=refused(request, refusal))
    if not decided.takes_time:
        taken = _done(changes, request, decided.text)
        return replace(taken, orders=decided)
    assert not isinstance(verb, PauseWorkers | ResumeWorkers)
    if running is not None:
        # Ordered again: it may end the drain.
        return replace(_joined(changes, running, request, decided.text), orders=decided)
    worker = node.worker(verb.worker)
    assert worker is not None
    begun = replace(changes, running=_begun(request, verb, worker, now_ns))
    return Taken(begun, decided, _accepted(request, decided.text))


def _joined(changes: Changes, running: Change, request: ControlRequest, text: str) -> Taken:
    """Have a request wait for the change that is under way already."""
    asked = (*running.asked, (request.id, request.verb))[-REMEMBERED:]
    changes = replace(changes, running=replace(running, asked=asked))
    return Taken(changes, reply=_accepted(request, text))


def _accepted(request: ControlRequest, text: str) -> ControlReply | None:
    """That it has begun; nothing yet for whoever waits for its end."""
    return None if request.wait else ControlReply(request.id, ReplyOutcome.ACCEPTED, text)


def _begun(request: ControlRequest, verb: LongVerb, worker: WorkerView, now_ns: int) -> Change:
    # Who waits for less ends the waiting alone: it is under way, and nothing else is begun.
    seconds = max(request.deadline_seconds or 0.0, _usual_seconds(verb, worker) + _MARGIN_SECONDS)
    deadline_ns = now_ns + to_ns(seconds)
    asked = ((request.id, verb),)
    return Change(request.id, verb, worker.incarnation, now_ns, deadline_ns, asked)


def _usual_seconds(verb: LongVerb, worker: WorkerView) -> float:
    """What a change may take by its own deadlines."""
    match verb:
        case RestartWorker():
            return worker.restart_seconds
        case DrainWorker():
            return worker.drain_seconds
        case ReassignWorker():
            drain = worker.drain_seconds if verb.drain_seconds is None else verb.drain_seconds
            # There and back.
            return (
                2 * Patience(drain_seconds=drain, start_seconds=worker.restart_seconds).move_seconds
            )


def _busy(running: Change | None, verb: LongVerb, node: NodeOverview, now_ns: int) -> str:
    """What else is under way; empty if nothing is, or a restart of the same worker."""
    if running is not None:
        restarts = isinstance(verb, RestartWorker) and isinstance(running.verb, RestartWorker)
        if restarts and running.verb.worker == verb.worker:
            return ""
        seconds = (now_ns - running.begun_ns) / 1e9
        return f"{text_of(running.verb)} is under way, for {seconds:.0f} s"
    move = node.move
    if move is None or move.step.final:
        return ""
    seconds = (now_ns - move.began_ns) / 1e9
    return f"reassign {move.worker} --role {move.to_role} is under way, for {seconds:.0f} s"


def _journalled(
    changes: Changes, request: ControlRequest, node: NodeOverview, now_ns: int
) -> Taken | None:
    """The answer to a request that the daemon before us was asked, if its move is known."""
    move, verb = node.move, request.verb
    if move is None or move.id != request.id or changes.running is not None:
        return None
    if not isinstance(verb, ReassignWorker):
        return _taken_id(changes, request)
    if (verb.worker, verb.role) != (move.worker, move.to_role):
        return _taken_id(changes, request)
    if move.step.final:
        return Taken(changes, reply=move_reply(move), again=True)
    worker = node.worker(move.worker)
    if worker is None:
        return None
    changes = replace(changes, running=_begun(request, verb, worker, now_ns))
    return Taken(changes, reply=_accepted(request, f"{text_of(verb)} begun"), again=True)


def advance(
    changes: Changes, node: NodeOverview, now_ns: int
) -> tuple[Changes, ControlReply | None]:
    """See how far the running change has come; what there is to say of it, each once."""
    running = changes.running
    if running is None:
        return changes, None
    reply = reached(running, node, now_ns)
    if reply.outcome.final:
        moving = isinstance(running.verb, ReassignWorker)
        # A move that goes on answers for itself when it is asked about again.
        asked = () if moving and reply.outcome is ReplyOutcome.TIMEOUT else running.asked
        done = (Answered(id, verb, replace(reply, id=id)) for id, verb in asked)
        return replace(remembered(changes, *done), running=None), reply
    if reply.text == running.said:
        return changes, None
    return replace(changes, running=replace(running, said=reply.text)), reply


def remembered(changes: Changes, *answered: Answered) -> Changes:
    """The same, with what was answered last."""
    return replace(changes, answered=(*changes.answered, *answered)[-REMEMBERED:])


def known(changes: Changes, request: ControlRequest) -> ControlReply | None:
    """The answer to a request whose id was used before; None if it is new, or not answered yet."""
    asked = {} if changes.running is None else dict(changes.running.asked)
    before = next((a for a in changes.answered if a.id == request.id), None)
    used_for = asked.get(request.id) or (before and before.verb)
    if used_for is not None and used_for != request.verb:
        return reused_id(request)
    return None if before is None else before.reply


def reused_id(request: ControlRequest) -> ControlReply:
    """The answer where the id of a request was used for another one."""
    why = f"the request id {request.id} was used for another request"
    refusal = ControlRefusal(RefusalReason.REUSED_ID, why, "use a new id for each request")
    return refused(request, refusal)


def _asked_before(changes: Changes, request: ControlRequest) -> Taken | None:
    if reply := known(changes, request):
        return Taken(changes, reply=reply, again=True)
    if changes.running is None or request.id not in dict(changes.running.asked):
        return None
    begun = _accepted(request, f"{text_of(request.verb)} begun")
    return Taken(changes, reply=begun, again=True)


def _taken_id(changes: Changes, request: ControlRequest) -> Taken:
    return Taken(changes, reply=reused_id(request), again=True)


def refused(request: ControlRequest, refusal: ControlRefusal) -> ControlReply:
    """The answer to a request that is not granted; not kept, as it may be granted later."""
    refused = ReplyOutcome.REFUSED
    return ControlReply(request.id, refused, refusal.why, refusal.way_out, reason=refusal.reason)


def _done(changes: Changes, request: ControlRequest, text: str) -> Taken:
    reply = ControlReply(request.id, ReplyOutcome.DONE, text)
    return Taken(remembered(changes, Answered(request.id, request.verb, reply)), reply=reply)
