"""The pods of this node, kept by what a list and a watch tell."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from disagg_cluster.discovery.kubernetes.pod_json import member, read_pod
from disagg_cluster.discovery.kubernetes.types import Pod

# A kubelet takes 110 pods, large nodes 250; what is beyond is not kept, and counted.
MAX_PODS = 1024


class Next(Enum):
    """What to do after an event of the watch."""

    WATCH = "go on"
    LIST = "list anew: the server has forgotten what we know"
    REST = "list anew, after a while: the server has an error"


class PodStore:
    """Pods by their UID; `pods` is one whole tuple, swapped at each change.

    Args:
        node: Whose pods they are; a server that ignores our selector would tell all of them.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._by_uid: dict[str, Pod] = {}
        self._pods: tuple[Pod, ...] = ()
        self._left_out = 0
        self._version = ""

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods as last told."""
        return self._pods

    @property
    def left_out(self) -> int:
        """How many pods found no room at the last list or since."""
        return self._left_out

    @property
    def resource_version(self) -> str:
        """Up to where the events of the watch were heard; empty if a list has to come first."""
        return self._version

    def distrust(self) -> None:
        """Have the next list replace everything; until then what is known counts on."""
        self._version = ""

    def replace(self, pods: Iterable[Pod], resource_version: str) -> None:
        """Take a whole list in place of all that was known."""
        self._by_uid.clear()
        self._left_out = 0
        for pod in pods:
            self._take(pod)
        self._version = resource_version
        self._pods = tuple(self._by_uid.values())

    def hear(self, event: object) -> Next:
        """Take one event of the watch."""
        kind, told = member(event, "type"), member(event, "object")
        if kind == "ERROR":
            # 410: our resource version is older than what the server remembers.
            return Next.LIST if member(told, "code") == 410 else Next.REST
        version = member(member(told, "metadata"), "resourceVersion")
        if isinstance(version, str) and len(version) <= 64:
            self._version = version
        pod = read_pod(told) if kind in ("ADDED", "MODIFIED", "DELETED") else None
        if pod is None:
            return Next.WATCH
        if kind == "DELETED":
            self._by_uid.pop(pod.uid, None)
        else:
            self._take(pod)
        self._pods = tuple(self._by_uid.values())
        return Next.WATCH

    def _take(self, pod: Pod) -> None:
        if pod.node != self._node:
            return
        if pod.uid not in self._by_uid and len(self._by_uid) >= MAX_PODS:
            self._left_out += 1
            return
        self._by_uid[pod.uid] = pod
