"""Checks whether a worker may leave its role or take another, and explains each objection.

Pure: computed from the view of the node. A move that would fail is refused rather than begun and
rolled back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from disagg_cluster.control.messages import ReassignWorker
from disagg_cluster.control.refusal import ControlRefusal, RefusalReason
from disagg_cluster.control.views import NodeOverview, RoleConstraints, WorkerView
from disagg_cluster.lifecycle.reassignment.progress import ROLES
from disagg_cluster.lifecycle.state import WorkerState

_MOVED = frozenset(role.value for role in ROLES)


def move_refusal(
    verb: ReassignWorker, worker: WorkerView, node: NodeOverview
) -> ControlRefusal | None:
    """Why a worker may not change its role now, and what to do instead; None if it may."""
    return next(_objections(verb, worker, node), None)


def drain_refusal(worker: WorkerView, node: NodeOverview) -> ControlRefusal | None:
    """Why a worker may not be drained now, and what to do instead; None if it may."""
    if worker.role not in _MOVED:
        why = f"{worker.worker} is a {worker.role} worker"
        return ControlRefusal(RefusalReason.FIXED_ROLE, why, "the router sends it no requests")
    if found := _busy_refusal(worker, "drain"):
        return found
    constraints = node.constraints
    if constraints.membership != "live":
        why = "no router of this node could send its requests elsewhere"
        way_out = "it takes a node file with a router and `membership: live`, and a new daemon"
        if constraints.membership:
            why = "the router of this node keeps its engines until it ends"
            way_out = "say `membership: live` under router in the node file, and restart both"
        return ControlRefusal(RefusalReason.FIXED_ROUTER, why, way_out)
    return last_of_role(worker, node.workers, constraints)


def _objections(
    verb: ReassignWorker, worker: WorkerView, node: NodeOverview
) -> Iterator[ControlRefusal]:
    name, constraints = worker.worker, node.constraints
    if verb.role not in ROLES or worker.role not in _MOVED:
        why = f"{name} is a {worker.role} worker" if verb.role in ROLES else f"no role {verb.role}"
        way_out = "only prefill and decode workers change places"
        yield ControlRefusal(RefusalReason.FIXED_ROLE, why, way_out)
    if found := _busy_refusal(worker, "reassign"):
        yield found
    if worker.drained:
        # Whoever drained it wants it to get no requests; a move would end that unasked.
        way_out = f"disagg-node resume {name}, then reassign it"
        yield ControlRefusal(RefusalReason.DRAINED, f"{name} is drained", way_out)
    if worker.state is not WorkerState.READY:
        why = f"{name} is {worker.state}: {worker.reason}"
        way_out = "wait until it is ready"
        if worker.state is WorkerState.FAILED:
            way_out = f"disagg-node restart {name}; once it is ready, reassign it"
        yield ControlRefusal(RefusalReason.NOT_READY, why, way_out)
    if constraints.membership == "fixed":
        yield ControlRefusal(
            RefusalReason.FIXED_ROUTER,
            "the router of this node keeps its engines until it ends",
            "say `membership: live` under router in the node file, and restart daemon and router",
        )
    if constraints.unwritten:
        # The next daemon would not know the engine of the new role, and end it.
        reason, way_out = RefusalReason.UNWRITTEN_JOURNAL, f"mend that, then reassign {name}"
        yield ControlRefusal(reason, constraints.unwritten, way_out)
    for problem in constraints.misfits.get((name, verb.role), ()):
        why = f"{name} cannot be a {verb.role} worker: {problem}"
        yield ControlRefusal(RefusalReason.DOES_NOT_FIT, why, "change the node file first")
    if stranger := constraints.strangers.get(name):
        way_out = "end what runs there: the engine would not get its memory back"
        yield ControlRefusal(RefusalReason.STRANGER, stranger, way_out)
    if last := last_of_role(worker, node.workers, constraints):
        yield last


def _busy_refusal(worker: WorkerView, what: str) -> ControlRefusal | None:
    name = worker.worker
    if worker.paused:
        way_out = f"disagg-node resume {name}, then {what} it"
        return ControlRefusal(RefusalReason.PAUSED, f"{name} is paused", way_out)
    for is_so, done in ((worker.being_stopped, "stopped"), (worker.restarting, "restarted")):
        if is_so:
            why = f"{name} is being {done}"
            return ControlRefusal(RefusalReason.WORKER_BUSY, why, "wait until that has ended")
    return None


def last_of_role(
    worker: WorkerView, workers: Iterable[WorkerView], constraints: RoleConstraints
) -> ControlRefusal | None:
    """Refuses to leave a model without engines that serve the worker's role; None if there are.

    Args:
        worker: The one that is to leave.
        workers: All of the node.
        constraints: What else is known.
    """
    if worker.role in constraints.elsewhere:
        return None
    others = [
        other
        for other in workers
        if other.worker != worker.worker
        and (other.role, other.model_name) == (worker.role, worker.model_name)
    ]
    obstacles = [_why_not_serving(other, worker, constraints.silent) for other in others]
    if not all(obstacles):
        return None
    why = f"{worker.model_name} would be left without {worker.role}: no other such worker is ready"
    way_out = f"make another worker {worker.role} first"
    if others:
        first = others[0].worker
        way_out = f"{first} {obstacles[0]}: disagg-node explain {first}"
    return ControlRefusal(RefusalReason.LAST_OF_ROLE, why, way_out)


def gap_refusal(
    worker: WorkerView, others: Iterable[WorkerView], constraints: RoleConstraints
) -> ControlRefusal | None:
    """Refuses to end a worker for a while that its model's users need; None if they do not.

    Without a router of this node, nothing is known of other nodes that serve them too. One that
    serves nobody now, since it hangs or is drained, leaves no gap.
    """
    if worker.role not in _MOVED or not constraints.membership:
        return None
    gets_requests = worker.routed_as or constraints.membership == "fixed"
    if not gets_requests or _why_not_serving(worker, worker, constraints.silent):
        return None
    return last_of_role(worker, others, constraints)


def removal_gaps(
    removed: Collection[str],
    models: Collection[str],
    workers: Sequence[WorkerView],
    constraints: RoleConstraints,
) -> tuple[str, ...]:
    """What models that stay would be left without if these workers are removed; empty if nothing.

    A file that names workers of both roles does not say which of them serve: one may have been
    moved, or have failed.

    Args:
        removed: The workers' names.
        models: The names of the models that have other workers in the file.
        workers: All workers of the node.
        constraints: What else is known.
    """
    staying = [each for each in workers if each.worker not in removed]
    leaving = (w for w in workers if w.worker in removed and w.model_name in models)
    found = ((each.worker, gap_refusal(each, staying, constraints)) for each in leaving)
    return tuple(f"{name}: {gap.why}; {gap.way_out}" for name, gap in found if gap)


def _why_not_serving(other: WorkerView, leaver: WorkerView, silent: Collection[str]) -> str:
    """Why users would not be served by `other` once `leaver` has gone; empty if they would."""
    if other.drained:
        return "is drained"
    if other.state is not WorkerState.READY:
        return f"is {other.state}"
    if other.worker in silent:
        return "is unresponsive"
    # Where nothing is routed by us, somebody else knows whom to send requests.
    return "gets no requests" if leaver.routed_as and not other.routed_as else ""
