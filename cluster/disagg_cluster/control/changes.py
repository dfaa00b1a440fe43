"""One change at a time, each once: what is under way, and what was answered before.

Pure: `take` receives each request, `advance` each change of the node and the passing of time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.control.decisions import ControlRefusal, Orders, decide
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    NodeOverview,
    PauseWorkers,
    ReplyOutcome,
    RestartWorker,
    ResumeWorkers,
    Verb,
    WorkerView,
    text_of,
)
from disagg_cluster.lifecycle.state import WorkerState, to_ns

REMEMBERED = 128
"""How many answered requests are known again by their ids."""

_MARGIN_SECONDS = 30.0
"""What a change may take beyond the deadlines of its worker."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change under way: of the process numbered `incarnation`, until `deadline_ns`.

    `asked` are the requests for it, by their ids; `said` is what was reported of it last.
    """

    id: str
    verb: RestartWorker
    incarnation: int
    begun_ns: int
    deadline_ns: int
    asked: tuple[tuple[str, Verb], ...]
    said: str = ""


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

    Asked again by the same id it is answered as before. A restart that is under way is not begun
    anew by another request for it. While a change takes its time no other that does is begun.
    """
    verb, running = request.verb, changes.running
    assert isinstance(verb, PauseWorkers | ResumeWorkers | RestartWorker)
    if known := _known(changes, request):
        return known
    decided = decide(verb, node)
    if isinstance(decided, ControlRefusal):
        return _answer(changes, request, ReplyOutcome.REFUSED, decided.why, decided.way_out)
    if not decided.takes_time:
        taken = _answer(changes, request, ReplyOutcome.DONE, decided.text)
        return replace(taken, orders=decided)
    assert isinstance(verb, RestartWorker)
    if running is not None and running.verb.worker != verb.worker:
        seconds = (now_ns - running.begun_ns) / 1e9
        why = f"{text_of(running.verb)} is under way, for {seconds:.0f} s"
        return _answer(
            changes, request, ReplyOutcome.REFUSED, why, "one change at a time: try later"
        )
    if running is None:
        worker = node.worker(verb.worker)
        assert worker is not None
        seconds = request.deadline_seconds or worker.restart_seconds + _MARGIN_SECONDS
        deadline_ns = now_ns + to_ns(seconds)
        asked = ((request.id, verb),)
        running = Change(request.id, verb, worker.incarnation, now_ns, deadline_ns, asked)
    else:
        running = replace(running, asked=(*running.asked, (request.id, verb))[-REMEMBERED:])
    changes = replace(changes, running=running)
    taken = Taken(changes, orders=decided)
    if request.wait:
        return taken
    reply = ControlReply(request.id, ReplyOutcome.ACCEPTED, decided.text)
    return replace(taken, reply=reply)


def advance(
    changes: Changes, node: NodeOverview, now_ns: int
) -> tuple[Changes, ControlReply | None]:
    """See how far the running change has come; what there is to say of it, each once."""
    running = changes.running
    if running is None:
        return changes, None
    reply = _reached(running, node, now_ns)
    if reply.outcome.final:
        done = (Answered(id, verb, replace(reply, id=id)) for id, verb in running.asked)
        answered = (*changes.answered, *done)[-REMEMBERED:]
        return replace(changes, running=None, answered=answered), reply
    if reply.text == running.said:
        return changes, None
    return replace(changes, running=replace(running, said=reply.text)), reply


def _known(changes: Changes, request: ControlRequest) -> Taken | None:
    running = changes.running
    asked = dict(running.asked) if running is not None else {}
    if request.id in asked:
        if asked[request.id] != request.verb:
            return _taken_id(changes, request)
        accepted = ControlReply(request.id, ReplyOutcome.ACCEPTED, f"{text_of(request.verb)} begun")
        return Taken(changes, reply=None if request.wait else accepted, again=True)
    before = next((a for a in changes.answered if a.id == request.id), None)
    if before is None:
        return None
    if before.verb != request.verb:
        return _taken_id(changes, request)
    return Taken(changes, reply=before.reply, again=True)


def _taken_id(changes: Changes, request: ControlRequest) -> Taken:
    why = f"the request id {request.id} was used for another request"
    reply = ControlReply(request.id, ReplyOutcome.REFUSED, why, "use a new id for each request")
    return Taken(changes, reply=reply, again=True)


def _answer(
    changes: Changes, request: ControlRequest, outcome: ReplyOutcome, text: str, way_out: str = ""
) -> Taken:
    reply = ControlReply(request.id, outcome, text, way_out)
    if outcome is ReplyOutcome.REFUSED:
        # What is refused now may be granted later.
        return Taken(changes, reply=reply)
    answered = (*changes.answered, Answered(request.id, request.verb, reply))[-REMEMBERED:]
    return Taken(replace(changes, answered=answered), reply=reply)


def _reached(change: Change, node: NodeOverview, now_ns: int) -> ControlReply:
    name = change.verb.worker
    worker = node.worker(name)

    def reply(outcome: ReplyOutcome, text: str, way_out: str = "") -> ControlReply:
        return ControlReply(change.id, outcome, f"{name}: {text}", way_out)

    if worker is None or worker.being_stopped or worker.state is WorkerState.STOPPED:
        return reply(ReplyOutcome.FAILED, "the restart was called off by a stop")
    if worker.paused:
        way_out = f"disagg-node resume {name}, then restart it"
        return reply(ReplyOutcome.FAILED, "the restart was called off by a pause", way_out)
    anew = worker.incarnation > change.incarnation
    if anew and worker.state is WorkerState.READY:
        seconds = (now_ns - change.begun_ns) / 1e9
        return replace(reply(ReplyOutcome.DONE, f"ready after {seconds:.1f} s"), worker=worker)
    if anew and worker.state is WorkerState.FAILED:
        return reply(ReplyOutcome.FAILED, f"failed, {worker.reason}", "look at its log")
    if now_ns >= change.deadline_ns:
        seconds = (change.deadline_ns - change.begun_ns) / 1e9
        text = f"{_stage(worker, anew)}, not ready within {seconds:g} s; it goes on"
        return reply(ReplyOutcome.TIMEOUT, text, "disagg-node status shows how it stands")
    return reply(ReplyOutcome.PROGRESS, _stage(worker, anew))


def _stage(worker: WorkerView, anew: bool) -> str:
    if worker.state is WorkerState.DRAINING:
        return "draining"
    if worker.state is WorkerState.STARTING and anew:
        return f"starting (pid {worker.pid})"
    if worker.state is WorkerState.BACKOFF and anew:
        return f"waits for its next start: {worker.reason}"
    return "ending"
