"""Explains a worker's state in sentences: since when, for which reason, what it waits for.

Pure: derived from the view of the node, most informative sentence first.
"""

from __future__ import annotations

from disagg_cluster.control.messages import ControlReply, ReplyOutcome
from disagg_cluster.control.views import MoveView, NodeOverview, WorkerView
from disagg_cluster.host.spans import duration_text
from disagg_cluster.lifecycle.reassignment.progress import MoveStep, Reassignment
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role

_STATES = {WorkerState.BACKOFF: "in backoff"}
_AT_DEADLINE = {
    WorkerState.STARTING: "its start is given up",
    WorkerState.BACKOFF: "it is started again",
    WorkerState.DRAINING: "it is ended, done or not,",
}
_UNWELL = (WorkerState.STARTING, WorkerState.BACKOFF, WorkerState.FAILED)
_STAGES = {
    MoveStep.LEAVING: "the router sends it nothing new any more",
    MoveStep.DRAINING: "its last requests end",
    MoveStep.SWITCHING: "it serves as {heading}",
    MoveStep.JOINING: "the router takes it as {heading}",
    MoveStep.PROVING: "{heading} uses GPU-seconds there",
}


def explain(worker: WorkerView, node: NodeOverview, now_ns: int) -> tuple[str, ...]:
    """Sentences about a worker at `now_ns`."""
    name = worker.worker
    because = f": {worker.reason}" if worker.reason else ""
    state = _STATES.get(worker.state, worker.state.value)
    sentences = [f"{name} has been {state} for {duration_text(worker.state_seconds)}{because}"]
    sentences.extend(_next_change(worker))
    if worker.unanswered:
        end = "" if worker.paused else "; it is restarted if that lasts and it does no work"
        sentences.append(f"its last health probe was not answered well: {worker.unanswered}{end}")
    move = node.move
    if move is not None and move.worker == name:
        sentences.append(_move_sentence(move, now_ns))
    if worker.paused_seconds is not None:
        sentences.append(
            f"it has been paused for {duration_text(worker.paused_seconds)}: observed, and "
            "nothing else; "
            f"disagg-node resume {name} ends that"
        )
    if worker.drained:
        gets = worker.route_text or "it gets no new requests"
        # Nor is it known then whether it has requests left.
        left = "" if worker.routed_as == Role.UNKNOWN else f"; {worker.left_text}"
        ends = f"disagg-node resume {name} ends that"
        sentences.append(f"it is drained by hand: {gets}{left}; {ends}")
    if worker.file_role and worker.file_role != worker.role:
        sentences.append(
            f"it is a {worker.role} worker, as it was reassigned or as the file was when it began; "
            f"the node file says {worker.file_role}, which holds once it was stopped"
        )
    sentences.extend(_routing(worker, node))
    sentences.extend(
        f"a change in the node file waits for the next daemon: {what.removeprefix(own)}"
        for what in node.daemon.waiting
        if what.startswith(own := f"{name}: ")
    )
    if worker.restarts:
        times = "once" if worker.restarts == 1 else f"{worker.restarts} times"
        # Of one that crashed just now, the first sentence says it.
        last = f"; the last one: {worker.cause}" if worker.cause not in ("", worker.reason) else ""
        sentences.append(f"it was started again after a crash {times}{last}")
    if worker.state in _UNWELL and worker.log_path:
        sentences.append(f"disagg-node logs {name} shows what it printed")
    return tuple(sentences)


def _next_change(worker: WorkerView) -> list[str]:
    """What changes its state next: a deadline or an operator."""
    if worker.state is WorkerState.FAILED and not worker.restarting:
        by_hand = f"disagg-node restart {worker.worker} tries it now"
        if worker.paused:
            # A paused worker refuses a restart.
            return [f"it is not tried again by itself, nor before it is resumed; then {by_hand}"]
        if worker.deadline_seconds is None:
            return [f"it is not tried again by itself; {by_hand}"]
        return [f"it is tried again in {duration_text(worker.deadline_seconds)}; {by_hand}"]
    what = _AT_DEADLINE.get(worker.state)
    if what is None or worker.deadline_seconds is None or worker.paused:
        return []
    return [f"{what} in {duration_text(worker.deadline_seconds)}"]


def move_stage(move: Reassignment) -> str:
    """What a move waits for, and the time limit."""
    waited = _STAGES[move.step].format(heading=move.heading)
    return f"{move.step}: waits until {waited}, {move.deadline_seconds:g} s at most"


def move_view(move: Reassignment) -> MoveView:
    """A move as watch replies report it."""
    roles = move.from_role.value, move.to_role.value
    return MoveView(move.id, move.worker, *roles, move.step.value, move.undone, move.why)


def move_reply(move: Reassignment) -> ControlReply:
    """The progress of a move, as a reply to the request for it."""
    name = move.worker
    way_out = f"disagg-node explain {name}"
    match move.step:
        case MoveStep.DONE:
            text = (
                f"{name}: serves as {move.to_role}, proven; drained in "
                f"{_seconds(move.drain_seconds)}, down {_seconds(move.downtime_seconds)}, effect "
                f"after {_seconds(move.effect_seconds)}"
            )
            return ControlReply(move.id, ReplyOutcome.DONE, text)
        case MoveStep.ROLLED_BACK:
            text = f"{name}: is {move.from_role} as before: {move.why}"
            return ControlReply(move.id, ReplyOutcome.FAILED, text, way_out)
        case MoveStep.FAILED:
            return ControlReply(move.id, ReplyOutcome.FAILED, f"{name}: {move.why}", way_out)
        case _:
            back = f"back to {move.from_role}, as {move.why}; " if move.undone else ""
            text = f"{name}: {back}{move_stage(move)}"
            return ControlReply(move.id, ReplyOutcome.PROGRESS, text)


def _move_sentence(move: Reassignment, now_ns: int) -> str:
    ago = duration_text((now_ns - move.since_ns) / 1e9)
    whole = f"its reassignment from {move.from_role} to {move.to_role} (request {move.id})"
    match move.step:
        case MoveStep.DONE:
            return f"{whole} was proven {ago} ago"
        case MoveStep.ROLLED_BACK:
            return f"{whole} was rolled back {ago} ago: {move.why}"
        case MoveStep.FAILED:
            return f"{whole} failed {ago} ago: {move.why}"
    back = f" goes back, as {move.why}:" if move.undone else " is under way:"
    return f"{whole}{back} {move_stage(move)}, for {ago} now"


def _routing(worker: WorkerView, node: NodeOverview) -> list[str]:
    match node.constraints.membership:
        case "live" if worker.routed_as == Role.UNKNOWN:
            return ["which requests the router sends it is not known: it does not tell its engines"]
        case "live" if worker.routed_as:
            return [f"the router sends it {worker.routed_as} requests"]
        case "live" if worker.role in ("prefill", "decode"):
            return ["the router sends it no requests"]
        case "fixed":
            return ["the router keeps its engines until it ends (membership: fixed)"]
    return []


def _seconds(seconds: float | None) -> str:
    return "unknown time" if seconds is None else f"{seconds:.1f} s"
