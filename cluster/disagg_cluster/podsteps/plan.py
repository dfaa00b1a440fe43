"""Which pods get a steps socket, and what becomes of the folders of the others; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from disagg_cluster.kube.nouns import Pod
from disagg_cluster.kube.pod_json import UID

ANNOTATION = "disagg-node/steps"
SOCKET_NAME = "steps.sock"

# More engines than GPUs that a node can have, cut into seven each.
MAX_SOCKETS = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """Pods by their UIDs: to listen to, to listen to no more, whose folders are to go.

    `left_out` asked for a socket and get none, because `MAX_SOCKETS` have one.
    """

    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def wishes(pod: Pod) -> bool:
    """Whether the pod asked to be heard: by its annotation, as long as it lives."""
    return pod.lives and pod.annotations.get(ANNOTATION) == "true"


def plan(
    pods: Iterable[Pod], heard: Collection[str], folders: Iterable[str], *, listed: bool
) -> Plan:
    """Decide what to do next.

    Args:
        pods: The pods of this node by the API server's word; nobody else's counts.
        heard: UIDs of the pods that are listened to now.
        folders: What lies in the root; names that are no UID are nobody's and stay.
        listed: Whether `pods` is all there are: before that, no folder is given up.
    """
    known = {pod.uid: pod for pod in pods if UID.fullmatch(pod.uid)}
    wanted = [uid for uid, pod in known.items() if wishes(pod)]
    # Those that have a socket keep it: a newcomer pushes nobody out.
    wanted.sort(key=lambda uid: uid not in heard)
    chosen, left_out = wanted[:MAX_SOCKETS], wanted[MAX_SOCKETS:]
    return Plan(
        begin=tuple(uid for uid in chosen if uid not in heard),
        end=tuple(sorted(set(heard).difference(chosen))),
        remove=tuple(sorted(f for f in folders if listed and UID.fullmatch(f) and f not in known)),
        left_out=tuple(left_out),
    )
