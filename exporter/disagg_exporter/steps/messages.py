"""Decodes packets of step streams into step records and control messages."""

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
# The 64-bit fields: two, and the totals, which are adjacent.
_LONG = ("sequence", "elapsed_ns", *STEPS_TOTALS, *ELAPSED_TOTALS, *REST_OF_TOTALS)
_TOTALS = "totals"
_RECORD_BYTES = slice(12, 16)
_OF_STEP = attrgetter(*(name for name in Step._fields if name in wire.Record._fields))


class MessageKind(StrEnum):
    """Kinds of messages of a stream: it connected, made a step, is alive, or disconnected."""

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

    `step` holds no work in a hello or heartbeat: only the state, totals and sequence number that
    the stream's last step reached. It is None when the stream disconnected, which is not its
    engine's death: the plugin may be back within a second. `in_flight` are the requests that the
    process has handed to its engine and not got back, by a hello or heartbeat; None if not
    reported. `limits` are the engine's, as reported in a hello.
    """

    kind: MessageKind
    key: StreamKey
    flags: int
    step: Step | None
    t_ns: int
    in_flight: int | None = None
    limits: StepLimits | None = None


class StepRecords(NamedTuple):
    """Consecutive steps of a stream, received together."""

    key: StreamKey
    flags: int
    rows: Rows


StepEvent = ControlMessage | StepRecords


class RecordRun(NamedTuple):
    """Consecutive records of one kind and one stream.

    Steps are rows; a hello or heartbeat is a single `step` with its stream's state.
    """

    kind: MessageKind
    incarnation: int
    engine_index: int
    flags: int
    rows: Rows | None = None
    step: Step | None = None

    @property
    def records(self) -> int:
        """The number of records."""
        return 1 if self.rows is None else len(self.rows)

    def event(self, key: StreamKey) -> StepEvent:
        """Return them as an event of a stream."""
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
    """Return the records in a connection's packets, and the number of invalid packets.

    An invalid packet is read up to its first error.
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
    """Return the distance between records of a packet; None if the packet is invalid.

    Records of a later version may be longer than ours.
    """
    if not wire.BYTES <= len(packet) <= wire.MAX_PACKET_BYTES:
        return None
    record_bytes = int.from_bytes(packet[_RECORD_BYTES], "little") or len(packet)
    return record_bytes if wire.BYTES <= record_bytes <= wire.MAX_RECORD_BYTES else None


def _lone_heartbeat(packet: bytes) -> RecordRun | None:
    """Return a packet's heartbeat if it is valid and the only record.

    Idle engines send only these, and numpy columns pay off only for many records.
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
    """Return which records precede their packet's first invalid one, and the invalid packets.

    `counts` are the numbers of records in each packet.
    """
    packets = np.split(sound, np.cumsum(counts)[:-1])
    kept = [np.logical_and.accumulate(packet) for packet in packets]
    return np.concatenate(kept), sum(not packet.all() for packet in packets)


def _runs(records: NDArray[np.void]) -> Iterator[RecordRun]:
    if not len(records):
        return
    # The flag of a filler step is per record, so it must not split a run.
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
    """Return the layout of records of this size."""
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
