"""Listens to the pods of this node that request it, each on a separate socket."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from disagg_cluster.discovery.kubernetes.pods import Pod
from disagg_cluster.discovery.pod_steps import folders
from disagg_cluster.discovery.pod_steps.admission import (
    MAX_SOCKETS,
    AdmissionControl,
    SocketStatus,
    Warnings,
    plan_sockets,
)
from disagg_cluster.telemetry.steps.step_source import ReceiverHealth
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus, Method
from disagg_exporter.model.counted import agreeing, counted
from disagg_exporter.steps.listener import ListenerCounts, StepsListener
from disagg_exporter.steps.messages import StepEvent

COLLECTOR = "pod_steps"

# An engine with eight ranks of 5 ms steps sends 1600 a second.
MESSAGES_PER_SECOND = 4000.0
MAX_CONNECTIONS = 64

_log = logging.getLogger(__name__)

DeliverSteps = Callable[[str, StepEvent], None]


class PodStepSockets:
    """The steps sockets of a node's pods; call `close` in the end.

    Args:
        root: The folder of the pods' folders, the same that the pods' manifests name.
        deliver: Receives each message with the UID of its pod, which is also the engine of its key;
            may be set until the first pod has a socket.
        clock_ns: Replaceable for tests.
    """

    def __init__(
        self,
        root: Path,
        deliver: DeliverSteps = lambda _uid, _event: None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._root = root
        self.deliver = deliver
        self._clock_ns = clock_ns
        self._health = ReceiverHealth(
            COLLECTOR, _log, recovered="all pods that request a socket are served"
        )
        self._open: dict[str, StepsListener] = {}
        # Kept as long as the pod: removing and adding the annotation must not reset its limits.
        self._admissions: dict[str, AdmissionControl] = {}
        self._warnings = Warnings()
        self._unknown_since_ns: dict[str, int] = {}

    def keep(
        self,
        pods: Iterable[Pod],
        loop: asyncio.AbstractEventLoop,
        *,
        is_current: bool,
        followers: Collection[str] = (),
    ) -> None:
        """Listen to the pods that request it, and stop for others; to be called periodically.

        Args:
            pods: The pods of this node as the API server reports them.
            loop: Where messages are received.
            is_current: Whether the API server reports now: otherwise no folder is removed.
            followers: UIDs of pods with a part of an engine that is led elsewhere; such a part
                reports no steps.
        """
        known = tuple(pods)
        with self._health.round() as problems:
            folders.make_root(self._root)
            plan = plan_sockets(
                known, self._open, self._unknown_entry_seconds(known), is_current=is_current
            )
            for uid in plan.end:
                listener = self._open.pop(uid)
                listener.drain()
                listener.close()
            for uid in self._admissions.keys() - {pod.uid for pod in known}:
                del self._admissions[uid]
            for uid in (*plan.remove, *plan.begin):
                try:
                    if uid in plan.remove:
                        folders.remove_folder(self._root, uid)
                    else:
                        self._open[uid] = self._listen(uid, loop)
                except DisaggError as error:
                    problems[uid] = str(error)
            speakers = [pod for pod in known if pod.uid not in followers]
            for warning in self._warnings.due(self._socket_statuses(speakers), self._clock_ns()):
                _log.warning("%s: %s", COLLECTOR, warning)
            if plan.left_out:
                left_out = counted(len(plan.left_out), "pod")
                ask = agreeing(len(plan.left_out), "asks", "ask")
                problems[""] = f"{left_out} more than {MAX_SOCKETS} {ask} for a steps socket"

    def close(self) -> None:
        """Close all sockets; the folders stay, for the next daemon."""
        for listener in self._open.values():
            listener.close()
        self._open.clear()

    def last_received(self, _name: str) -> Mapping[Method, int]:
        """Return nothing: a received step counts for the engine that it is delivered to."""
        return {}

    def drain(self, _name: str) -> None:
        """Ingest what waits in the sockets, before the end of an engine is accounted."""
        for listener in self._open.values():
            listener.drain()

    def forget(self, _name: str) -> None:
        """Do nothing: a socket goes with its pod."""

    def counts(self, uid: str) -> ListenerCounts | None:
        """Return the counts of a pod's socket; None if it has none."""
        return self._open[uid].counts if uid in self._open else None

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why pods' steps are not received, one line each."""
        return self._health.problems

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collector `pod_steps`."""
        return self._health.collectors()

    def _socket_statuses(self, known: Iterable[Pod]) -> Iterator[SocketStatus]:
        for pod in known:
            admission, listener = self._admissions.get(pod.uid), self._open.get(pod.uid)
            if admission is not None:
                counts = None if listener is None else listener.counts
                yield SocketStatus(
                    uid=pod.uid,
                    name=f"{pod.namespace}/{pod.name}",
                    running=pod.phase == "Running" and listener is not None,
                    accepted=0 if counts is None else counts.accepted,
                    refused=admission.refused + (0 if counts is None else counts.bad_messages),
                    flags=admission.flags,
                )

    def _unknown_entry_seconds(self, known: Iterable[Pod]) -> dict[str, float]:
        """Return the root's entries, with the seconds for which each was no known pod."""
        now_ns, uids = self._clock_ns(), {pod.uid for pod in known}
        present = folders.entries(self._root)
        self._unknown_since_ns = {
            name: self._unknown_since_ns.get(name, now_ns) for name in present if name not in uids
        }
        return {name: (now_ns - self._unknown_since_ns.get(name, now_ns)) / 1e9 for name in present}

    def _make_folder(self, uid: str) -> Path:
        folders.make_root(self._root)
        return folders.make_folder(self._root, uid)

    def _listen(self, uid: str, loop: asyncio.AbstractEventLoop) -> StepsListener:
        admission = self._admissions.setdefault(uid, AdmissionControl(self._clock_ns()))

        def admit(event: StepEvent) -> None:
            admitted = admission.admitted(event, self._clock_ns())
            if admitted is not None:
                self._health.receive()
                self.deliver(uid, admitted)

        listener = StepsListener(
            self._make_folder(uid),
            uid,
            # Any process that reaches this socket is in this pod: no other has its folder.
            lambda _pid: listener.counts.connected < MAX_CONNECTIONS,
            admit,
            clock_ns=self._clock_ns,
            mode=0o666,
            messages_per_second=MESSAGES_PER_SECOND,
            make_folder=lambda: self._make_folder(uid),
        )
        listener.open(loop)
        return listener
