"""Which pods get a steps socket, and what becomes of the folders of the others; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from disagg_cluster.discovery.kubernetes.pod_json import UID
from disagg_cluster.discovery.kubernetes.types import Pod

ANNOTATION = "disagg-node/steps"
SOCKET_NAME = "steps.sock"

# More engines than GPUs that a node can have, cut into seven each.
MAX_SOCKETS = 128

# The kubelet may make a folder, and mount it for good, before the API server's word of the pod
# reaches us. One that is taken from under such a pod can never be heard again.
STRANGE_SECONDS = 600.0


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
    pods: Iterable[Pod], heard: Collection[str], folders: Mapping[str, float], *, told: bool
) -> Plan:
    """Decide what to do next.

    Args:
        pods: The pods of this node by the API server's word; nobody else's counts.
        heard: UIDs of the pods that are listened to now.
        folders: What lies in the root, and for how many seconds no pod of that name was known.
            Names that are no UID are nobody's and stay.
        told: Whether the API server tells us now, and all of it: otherwise no folder is given up.
    """
    known = {pod.uid: pod for pod in pods if UID.fullmatch(pod.uid)}
    wanted = [uid for uid, pod in known.items() if wishes(pod)]
    # Those that have a socket keep it: a newcomer pushes nobody out.
    wanted.sort(key=lambda uid: uid not in heard)
    chosen, left_out = wanted[:MAX_SOCKETS], wanted[MAX_SOCKETS:]
    gone = (
        name
        for name, strange_seconds in folders.items()
        if name not in known and (name in heard or strange_seconds > STRANGE_SECONDS)
    )
    return Plan(
        begin=tuple(uid for uid in chosen if uid not in heard),
        end=tuple(sorted(set(heard).difference(chosen))),
        remove=tuple(sorted(name for name in gone if told and UID.fullmatch(name))),
        left_out=tuple(left_out),
    )
