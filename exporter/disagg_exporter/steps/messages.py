"""Messages of step streams: packets of the wire turned into step records and control messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import groupby, pairwise
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepLimits, StepTotals, StreamKey
from disagg_exporter.steps.rows import (
    ELAPSED_TOTALS,
    LARGEST,
    NOT_REPORTED,
    REST_OF_TOTALS,
    ROW,
    STEPS_TOTALS,
    Rows,
    steps_of,
)

_FORMATS = {"B": "u1", "H": "<u2", "I": "<u4", "Q": "<u8", "q": "<i8", "f": "<f4"}
_SHARED = tuple(name for name in ROW.names or () if name in wire.Record._fields)
# The fields of 64 bits: two, and those of the totals, which lie side by side.
_LONG = ("sequence", "elapsed_ns", *STEPS_TOTALS, *ELAPSED_TOTALS, *REST_OF_TOTALS)
_TOTALS = "totals"
_RECORD_BYTES = slice(12, 16)
_OF_STEP = attrgetter(*(name for name in Step._fields if name in wire.Record._fields))


class MessageKind(StrEnum):
    """What a stream of steps reported: it began a connection, took a step, lives, or hung up."""

    HELLO = "hello"
    STEP = "step"
    HEARTBEAT = "heartbeat"
    DISCONNECTED = "disconnected"


_KINDS = {
    wire.HELLO: MessageKind.HELLO,
    wire.STEP: MessageKind.STEP,
    wire.HEARTBEAT: MessageKind.HEARTBEAT,
}


class ControlMessage(NamedTuple):
    """One message of a stream other than a batch of steps; `flags` are those of `wire`.

    `step` is the step taken. In a hello and a heartbeat it holds no work: only the state, the
    totals and the sequence number that the stream's last step reached. It is None when the
    stream hung up, which is not its engine's death: the plugin may be back within a second.
    `in_flight` are the requests that the process has handed to its engine and not got back, as its
    hello or heartbeat tells; None where it does not. `limits` are the engine's, as a hello tells.
    """

    kind: MessageKind
    key: StreamKey
    flags: int
    step: Step | None
    t_ns: int
    in_flight: int | None = None
    limits: StepLimits | None = None


class StepRecords(NamedTuple):
    """Steps that a stream took one after the other, received at once."""

    key: StreamKey
    flags: int
    rows: Rows


StepEvent = ControlMessage | StepRecords


class RecordRun(NamedTuple):
    """Records of one kind and one stream that follow each other.

    Steps are rows; a hello or a heartbeat is the lone `step` that says where its stream stands.
    """

    kind: MessageKind
    incarnation: int
    engine_index: int
    flags: int
    rows: Rows | None = None
    step: Step | None = None

    @property
    def records(self) -> int:
        """How many they are."""
        return 1 if self.rows is None else len(self.rows)

    def event(self, key: StreamKey) -> StepEvent:
        """Return the event that they are, of a stream."""
        if self.rows is not None:
            return StepRecords(key, self.flags, self.rows)
        step, in_flight, limits = self.step, None, None
        if step is not None and self.flags & wire.IN_FLIGHT:
            in_flight = step.context_requests
        if step is not None and self.flags & wire.LIMITS:
            limits = StepLimits(step.context_tokens, step.generation_requests)
        if step is not None and (in_flight is not None or limits is not None):
            step = step._replace(context_requests=0, context_tokens=0, generation_requests=0)
        t_ns = 0 if step is None else step.t_ns
        return ControlMessage(self.kind, key, self.flags, step, t_ns, in_flight, limits)


def record_runs(packets: Sequence[bytes]) -> tuple[list[RecordRun], int]:
    """Return what packets of one connection say, and how many of them have something wrong.

    Of such a packet all is read that comes before what is wrong.
    """
    if len(packets) == 1 and (heartbeat := _lone_heartbeat(packets[0])):
        return [heartbeat], 0
    sized, bad = [], 0
    for packet in packets:
        record_bytes = _record_bytes_of(packet)
        if record_bytes is None:
            bad += 1
            continue
        rest = len(packet) % record_bytes
        bad += rest > 0
        sized.append((record_bytes, packet[: len(packet) - rest]))
    runs: list[RecordRun] = []
    for record_bytes, some in groupby(sized, key=lambda one: one[0]):
        parts = [packet for _, packet in some]
        records = np.frombuffer(b"".join(parts), _layout(record_bytes))
        sound = _sound(records)
        if not sound.all():
            kept, wrong = _before_what_is_wrong(sound, [len(p) // record_bytes for p in parts])
            records, bad = records[kept], bad + wrong
        runs += _runs(records)
    return runs, bad


def _record_bytes_of(packet: bytes) -> int | None:
    """Return how far apart the records of a packet begin; None if it holds none.

    Records of a later version may be longer than ours.
    """
    if not wire.BYTES <= len(packet) <= wire.MAX_PACKET_BYTES:
        return None
    record_bytes = int.from_bytes(packet[_RECORD_BYTES], "little") or len(packet)
    return record_bytes if wire.BYTES <= record_bytes <= wire.MAX_RECORD_BYTES else None


def _lone_heartbeat(packet: bytes) -> RecordRun | None:
    """Return the heartbeat that a packet holds, if it is sound and alone there.

    Idle engines send nothing else. Columns pay for what is many.
    """
    if len(packet) != wire.BYTES:
        return None
    record = wire.Record._make(wire.LAYOUT.unpack(packet))
    is_ours = record.version >= wire.VERSION and record.record_bytes in (0, wire.BYTES)
    if not is_ours or record.kind != wire.HEARTBEAT or not 0 <= record.kv_usage_ratio < inf:
        return None
    if max(record) > LARGEST:
        return None
    totals = StepTotals(record[-11:-7], record[-7:-3], *record[-3:])
    step = Step._make((*_OF_STEP(record), False, totals, None))
    flags = record.flags & ~wire.DUMMY
    return RecordRun(
        MessageKind.HEARTBEAT, record.incarnation, record.engine_index, flags, step=step
    )


def _sound(records: NDArray[np.void]) -> NDArray[np.bool_]:
    kind = records["kind"]
    known = (records["version"] >= wire.VERSION) & (kind >= min(_KINDS)) & (kind <= max(_KINDS))
    usage = records["kv_usage_ratio"]
    return np.asarray(known & (usage >= 0) & (usage < np.inf))


def _before_what_is_wrong(
    sound: NDArray[np.bool_], counts: Sequence[int]
) -> tuple[NDArray[np.bool_], int]:
    """Return which records come before the first wrong one of their packet, and how many have one.

    `counts` are the records of each packet.
    """
    packets = np.split(sound, np.cumsum(counts)[:-1])
    kept = [np.logical_and.accumulate(packet) for packet in packets]
    return np.concatenate(kept), sum(not packet.all() for packet in packets)


def _runs(records: NDArray[np.void]) -> Iterator[RecordRun]:
    if not len(records):
        return
    # A filler step says so itself, in the midst of others.
    flags = records["flags"] & ~np.uint16(wire.DUMMY)
    heads = (records["kind"], records["incarnation"], records["engine_index"], flags)
    changes = np.zeros(len(records) - 1, np.bool_)
    for head in heads:
        changes |= head[1:] != head[:-1]
    rows = _rows(records)
    for first, last in pairwise([0, *np.flatnonzero(changes) + 1, len(records)]):
        kind, incarnation, engine_index, flag = (int(head[first]) for head in heads)
        run = RecordRun(_KINDS[kind], incarnation, engine_index, flag, rows[first:last])
        if kind == wire.STEP:
            yield run
        else:
            yield from (run._replace(rows=None, step=step) for step in steps_of(rows[first:last]))


def _rows(records: NDArray[np.void]) -> Rows:
    rows = np.empty(len(records), ROW)
    for name in _SHARED:
        rows[name] = records[name]
    rows["dummy"] = records["flags"] & wire.DUMMY
    rows["decode_kv_tokens"] = NOT_REPORTED
    if max(records[name].max() for name in (*_LONG[:2], _TOTALS)) > LARGEST:
        for name in _LONG:
            rows[name] = np.minimum(records[name], LARGEST)
    return rows


@cache
def _layout(record_bytes: int) -> np.dtype[Any]:
    """Return how records lie that begin so many bytes apart."""
    letters = re.findall(r"(\d*)([A-Za-z])", wire.LAYOUT.format)
    formats: list[Any] = [
        _FORMATS[letter] for times, letter in letters for _ in range(int(times or 1))
    ]
    offsets = np.cumsum([0, *(np.dtype(one).itemsize for one in formats)])[:-1].tolist()
    names = list(wire.Record._fields)
    formats.append((_FORMATS["Q"], len(_LONG) - 2))
    offsets.append(offsets[names.index(_LONG[2])])
    names.append(_TOTALS)
    shape = {"names": names, "formats": formats, "offsets": offsets, "itemsize": record_bytes}
    return np.dtype(shape)  # type: ignore[call-overload,no-any-return] # its stub knows no such dict
