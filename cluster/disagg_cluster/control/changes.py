"""Runs one change at a time and answers each request id once, also when it is repeated.

Pure: `handle` takes each request, `advance` each change of the node and the passing of time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.control.change import Change, progress_of
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
"""How many answered requests are remembered by id."""

_MARGIN_SECONDS = 30.0
"""Added to a worker's own deadlines to get the deadline of a change."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answered request, kept so that a repetition gets the same answer."""

    id: str
    verb: Verb
    reply: ControlReply


@dataclass(frozen=True, slots=True)
class Changes:
    """The change in progress and the most recently answered requests."""

    running: Change | None = None
    answered: tuple[Answered, ...] = ()


@dataclass(frozen=True, slots=True)
class Handled:
    """Result of one request: orders to give and the reply; without a reply it waits.

    It waits for the running change. `repeated`: a repeated request, for which nothing is done.
    """

    changes: Changes
    orders: Orders | None = None
    reply: ControlReply | None = None
    repeated: bool = False


def handle(changes: Changes, request: ControlRequest, node: NodeOverview, now_ns: int) -> Handled:
    """Handle a request for a change.

    A repeated id gets the earlier answer, also when this daemon found the move of the worker in the
    journal. A new request for the change in progress joins it instead of starting another. While a
    long-running change is in progress, no other is started.
    """
    verb, running = request.verb, changes.running
    assert not isinstance(verb, ExplainWorker | RereadNodeFile | DaemonStatus | WatchStatus)
    if earlier := _repeated(changes, request) or _journalled(changes, request, node, now_ns):
        return earlier
    if running is not None and running.verb == verb and not isinstance(verb, RestartWorker):
        return _joined(changes, running, request, f"{text_of(verb)} begun")
    decided = decide(verb, node)
    if isinstance(decided, ControlRefusal):
        return Handled(changes, reply=refused(request, decided))
    rehearsed = isinstance(verb, ReassignWorker) and verb.dry_run
    if decided.takes_time or rehearsed:
        assert not isinstance(verb, PauseWorkers | ResumeWorkers)
        if busy := _busy(running, verb, node, now_ns):
            way_out = "one change at a time: try later"
            refusal = ControlRefusal(RefusalReason.CHANGE_UNDER_WAY, busy, way_out)
            return Handled(changes, reply=refused(request, refusal))
    if not decided.takes_time:
        handled = _done(changes, request, decided.text)
        return replace(handled, orders=decided)
    assert not isinstance(verb, PauseWorkers | ResumeWorkers)
    if running is not None:
        # Given again: the restart may have to cut the drain short.
        return replace(_joined(changes, running, request, decided.text), orders=decided)
    worker = node.worker(verb.worker)
    assert worker is not None
    begun = replace(changes, running=_new_change(request, verb, worker, now_ns))
    return Handled(begun, decided, _accepted(request, decided.text))


def _joined(changes: Changes, running: Change, request: ControlRequest, text: str) -> Handled:
    """Make a request wait for the change already in progress."""
    asked = (*running.asked, (request.id, request.verb))[-REMEMBERED:]
    changes = replace(changes, running=replace(running, asked=asked))
    return Handled(changes, reply=_accepted(request, text))


def _accepted(request: ControlRequest, text: str) -> ControlReply | None:
    """The reply that the change has begun; None for a client that waits for its end."""
    return None if request.wait else ControlReply(request.id, ReplyOutcome.ACCEPTED, text)


def _new_change(request: ControlRequest, verb: LongVerb, worker: WorkerView, now_ns: int) -> Change:
    # A shorter client deadline ends only the wait: the change goes on and blocks others.
    seconds = max(request.deadline_seconds or 0.0, _usual_seconds(verb, worker) + _MARGIN_SECONDS)
    deadline_ns = now_ns + to_ns(seconds)
    asked = ((request.id, verb),)
    return Change(request.id, verb, worker.incarnation, now_ns, deadline_ns, asked)


def _usual_seconds(verb: LongVerb, worker: WorkerView) -> float:
    """How long a change may take according to its own deadlines."""
    match verb:
        case RestartWorker():
            return worker.restart_seconds
        case DrainWorker():
            return worker.drain_seconds
        case ReassignWorker():
            drain = worker.drain_seconds if verb.drain_seconds is None else verb.drain_seconds
            # A full move and its rollback.
            return (
                2 * Patience(drain_seconds=drain, start_seconds=worker.restart_seconds).move_seconds
            )


def _busy(running: Change | None, verb: LongVerb, node: NodeOverview, now_ns: int) -> str:
    """Names another change in progress; empty if there is none, or a restart of this worker."""
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
) -> Handled | None:
    """Answers a request that was sent to the previous daemon, if its move is in the journal."""
    move, verb = node.move, request.verb
    if move is None or move.id != request.id or changes.running is not None:
        return None
    if not isinstance(verb, ReassignWorker):
        return _id_conflict(changes, request)
    if (verb.worker, verb.role) != (move.worker, move.to_role):
        return _id_conflict(changes, request)
    if move.step.final:
        return Handled(changes, reply=move_reply(move), repeated=True)
    worker = node.worker(move.worker)
    if worker is None:
        return None
    changes = replace(changes, running=_new_change(request, verb, worker, now_ns))
    return Handled(changes, reply=_accepted(request, f"{text_of(verb)} begun"), repeated=True)


def advance(
    changes: Changes, node: NodeOverview, now_ns: int
) -> tuple[Changes, ControlReply | None]:
    """Advance the running change; returns a reply when its progress text has changed."""
    running = changes.running
    if running is None:
        return changes, None
    reply = progress_of(running, node, now_ns)
    if reply.outcome.final:
        moving = isinstance(running.verb, ReassignWorker)
        # A move still running after the timeout is answered from the journal when asked again.
        asked = () if moving and reply.outcome is ReplyOutcome.TIMEOUT else running.asked
        done = (Answered(id, verb, replace(reply, id=id)) for id, verb in asked)
        return replace(with_answered(changes, *done), running=None), with_doubt(reply, node)
    if reply.text == running.reported:
        return changes, None
    return replace(changes, running=replace(running, reported=reply.text)), reply


def with_answered(changes: Changes, *answered: Answered) -> Changes:
    """The same changes with these answers remembered."""
    return replace(changes, answered=(*changes.answered, *answered)[-REMEMBERED:])


def with_doubt(reply: ControlReply, node: NodeOverview) -> ControlReply:
    """The same reply; if a change was made that cannot be written down, the text says so."""
    made = reply.outcome in (ReplyOutcome.DONE, ReplyOutcome.ACCEPTED)
    if not made or not node.daemon.unwritten:
        return reply
    return replace(
        reply, text=f"{reply.text}; the next daemon would not know of it: {node.daemon.unwritten}"
    )


def earlier_reply(changes: Changes, request: ControlRequest) -> ControlReply | None:
    """The answer to a repeated request id; None if the id is new or not answered yet."""
    asked = {} if changes.running is None else dict(changes.running.asked)
    before = next((a for a in changes.answered if a.id == request.id), None)
    used_for = asked.get(request.id) or (before and before.verb)
    if used_for is not None and used_for != request.verb:
        return reused_id(request)
    return None if before is None else before.reply


def reused_id(request: ControlRequest) -> ControlReply:
    """The refusal of a request id that was already used for a different request."""
    why = f"the request id {request.id} was used for another request"
    refusal = ControlRefusal(RefusalReason.REUSED_ID, why, "use a new id for each request")
    return refused(request, refusal)


def _repeated(changes: Changes, request: ControlRequest) -> Handled | None:
    if reply := earlier_reply(changes, request):
        return Handled(changes, reply=reply, repeated=True)
    if changes.running is None or request.id not in dict(changes.running.asked):
        return None
    begun = _accepted(request, f"{text_of(request.verb)} begun")
    return Handled(changes, reply=begun, repeated=True)


def _id_conflict(changes: Changes, request: ControlRequest) -> Handled:
    return Handled(changes, reply=reused_id(request), repeated=True)


def refused(request: ControlRequest, refusal: ControlRefusal) -> ControlReply:
    """The reply to a refused request; not remembered, as a retry may be granted."""
    refused = ReplyOutcome.REFUSED
    return ControlReply(request.id, refused, refusal.why, refusal.way_out, reason=refusal.reason)


def _done(changes: Changes, request: ControlRequest, text: str) -> Handled:
    reply = ControlReply(request.id, ReplyOutcome.DONE, text)
    return Handled(with_answered(changes, Answered(request.id, request.verb, reply)), reply=reply)
