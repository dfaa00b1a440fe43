"""Which pods get a steps socket, what each may send there, and which warnings are due; pure.

A pod is trusted about its own engine; false data affects nothing else. Data that would cost us
memory, or distort what is computed over several engines, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.discovery.kubernetes.pods import UID, Pod
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StreamKey
from disagg_exporter.steps.messages import StepEvent, StepRecords
from disagg_exporter.steps.rows import (
    ELAPSED_TOTALS,
    LARGEST,
    REST_OF_TOTALS,
    STEPS_TOTALS,
    Rows,
    rows_of,
)

ANNOTATION = "disagg-node/steps"
SOCKET_NAME = "steps.sock"

# More than the GPUs that a node can have, each divided into seven.
MAX_SOCKETS = 128

# The kubelet may create a folder, and mount it permanently, before the API server reports the pod.
# If it is removed from under such a pod, the pod can never be reached again.
STRANGE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Pods by their UIDs: to start listening to, to stop listening to, whose folders to remove.

    `left_out` requested a socket and get none, because there are `MAX_SOCKETS` already.
    """

    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def wants_socket(pod: Pod) -> bool:
    """Return whether the pod requests a socket: by its annotation, as long as it lives."""
    return pod.lives and pod.annotations.get(ANNOTATION) == "true"


def plan_sockets(
    pods: Iterable[Pod],
    listening: Collection[str],
    folders: Mapping[str, float],
    *,
    is_current: bool,
) -> Plan:
    """Decide what to do next.

    Args:
        pods: The pods of this node as reported by the API server, the only trusted source.
        listening: UIDs of the pods with an open socket.
        folders: Entries of the root, with the seconds for which no pod of that name was known.
            Names that are not UIDs are not ours and stay.
        is_current: Whether the API server reports now, and all: otherwise no folder is removed.
    """
    known = {pod.uid: pod for pod in pods if UID.fullmatch(pod.uid)}
    wanted = [uid for uid, pod in known.items() if wants_socket(pod)]
    # Pods with a socket keep it: a new pod displaces none.
    wanted.sort(key=lambda uid: uid not in listening)
    chosen, left_out = wanted[:MAX_SOCKETS], wanted[MAX_SOCKETS:]
    gone = (
        name
        for name, strange_seconds in folders.items()
        if name not in known and (name in listening or strange_seconds > STRANGE_SECONDS)
    )
    return Plan(
        begin=tuple(uid for uid in chosen if uid not in listening),
        end=tuple(sorted(set(listening).difference(chosen))),
        remove=tuple(sorted(name for name in gone if is_current and UID.fullmatch(name))),
        left_out=tuple(left_out),
    )


# Ranks of one pod, and how often its engine may restart: at once, in the long run, in total.
MAX_RANKS = 64
STREAMS_AT_ONCE = 64
SECONDS_A_STREAM = 30.0
MAX_STREAMS = 1024

# A first prefill may take minutes; a stalled daemon receives it late.
MAX_STEP_SECONDS = 600.0
OLDEST_SECONDS = 600.0
# All containers share the kernel's clock; this much is rounding.
AHEAD_SECONDS = 0.1

# Counts. Times are limited by LARGEST, which is years: nanoseconds reach this within four months.
_LARGEST_COUNT = 1 << 53
_NOTHING = Step(0, 0, 0)
_COUNTED = (*STEPS_TOTALS, *REST_OF_TOTALS, "sequence")


class AdmissionControl:
    """Accepts or refuses one pod's messages.

    `refused` counts refusals; `flags` are the `wire` flags of the last accepted message.
    """

    def __init__(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._streams: set[StreamKey] = set()
        self.refused = 0
        self.flags = 0

    def admitted(self, event: StepEvent, now_ns: int) -> StepEvent | None:
        """Return the part of it that may be passed on."""
        rows = event.rows if isinstance(event, StepRecords) else rows_of([event.step or _NOTHING])
        times = rows["t_ns"] if isinstance(event, StepRecords) else np.array([event.t_ns])
        sound = _valid(rows, times, now_ns)
        if not sound.any() or not self._has_room(event.key, now_ns):
            self.refused += len(rows)
            return None
        self.refused += int((~sound).sum())
        self.flags = event.flags
        return event._replace(rows=rows[sound]) if isinstance(event, StepRecords) else event

    def _has_room(self, key: StreamKey, now_ns: int) -> bool:
        if key in self._streams:
            return True
        lived_seconds = (now_ns - self._began_ns) / 1e9
        allowed = min(STREAMS_AT_ONCE + lived_seconds / SECONDS_A_STREAM, MAX_STREAMS)
        if key.engine_index >= MAX_RANKS or len(self._streams) >= allowed:
            return False
        self._streams.add(key)
        return True


def _valid(rows: Rows, t_ns: NDArray[np.int64], now_ns: int) -> NDArray[np.bool_]:
    age_seconds = (now_ns - t_ns) / 1e9
    sound = (age_seconds >= -AHEAD_SECONDS) & (age_seconds <= OLDEST_SECONDS)
    sound &= rows["elapsed_ns"] <= MAX_STEP_SECONDS * 1e9
    sound &= (rows["kv_usage_ratio"] >= 0.0) & (rows["kv_usage_ratio"] <= 1.0)
    for names, largest in ((_COUNTED, _LARGEST_COUNT), (ELAPSED_TOTALS, LARGEST - 1)):
        for name in names:
            sound &= rows[name] <= largest
    return np.asarray(sound, np.bool_)


# The plugin connects when the engine makes its first stat logger: after the model is loaded.
SILENT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class SocketStatus:
    """Status of one pod's socket: `flags` are those of its last message, 0 before the first."""

    uid: str
    name: str
    running: bool
    accepted: int
    refused: int
    flags: int


class Warnings:
    """Remembers since when pods run, and the warnings given for each."""

    def __init__(self) -> None:
        self._running_ns: dict[str, int] = {}
        self._warned: set[tuple[str, str]] = set()

    def due(self, statuses: Iterable[SocketStatus], now_ns: int) -> Iterator[str]:
        """Yield the warnings due now; pods that are no longer listed are forgotten."""
        known = tuple(statuses)
        self._running_ns = {
            each.uid: self._running_ns.get(each.uid, now_ns) for each in known if each.running
        }
        found = {(each.uid, text) for each in known for text in self._warnings(each, now_ns)}
        yield from sorted(text for uid, text in found - self._warned)
        uids = {each.uid for each in known}
        self._warned = found | {(uid, text) for uid, text in self._warned if uid in uids}

    def _warnings(self, socket: SocketStatus, now_ns: int) -> Iterator[str]:
        silent_ns = now_ns - self._running_ns.get(socket.uid, now_ns)
        if not socket.accepted and silent_ns > SILENT_SECONDS * 1e9:
            yield (
                f"{socket.name} requested a steps socket but has sent nothing: check that its "
                f"engine has PYTHONPATH and {wire.SOCKET_ENVIRONMENT}"
            )
        if socket.flags & wire.NO_DETAILS:
            yield (
                f"{socket.name} does not report how long its steps take: start its engine with "
                "--enable-logging-iteration-details"
            )
        if socket.refused:
            yield f"{socket.name} sent data that no engine sends; it was refused"
