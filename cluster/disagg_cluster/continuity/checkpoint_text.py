"""Serialises the accounting of a daemon: written each second, read by its successor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from pydantic import TypeAdapter, ValidationError

from disagg_cluster.supervisor.journal.journal_text import Where, first_problem
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import GPU_SLICES
from disagg_exporter.model.checkpoints import (
    DeviceCheckpoint,
    EngineCheckpoint,
    LedgerCheckpoint,
    PendingWork,
    PieceCheckpoint,
    TimelineCheckpoint,
)

VERSION = 2
MOST_BYTES = 16 << 20
"""The longest text that is read; 64 engines on 64 devices need a hundredth of it."""
_MOST = 2**62
# Values summed over devices, in sevenths of a nanosecond, and never compared with a time.
_MOST_ADDED_UP = _MOST * 2**16


class CheckpointError(DisaggError):
    """A checkpoint that cannot be trusted; the text says why."""


class Checkpoint(NamedTuple):
    """A daemon's accounting for its successor.

    `processes` are the start ticks of the engines' processes by their pids, as text; `names` are
    the names of engines that others started, by recognition key. `daemon` is the writer's signature
    in the run folder's lock.
    """

    ledger: LedgerCheckpoint
    processes: Mapping[str, int] = {}
    names: Mapping[str, str] = {}
    wall_offset_seconds: float = 0.0
    daemon: str = ""


class _CheckpointDocument(NamedTuple):
    version: int
    boot_id: str
    pid_namespace: str
    content: Checkpoint


_DOCUMENT = TypeAdapter(_CheckpointDocument)


def encode(where: Where, content: Checkpoint) -> bytes:
    """Return the whole text of a checkpoint: a line with a checksum, and the content as JSON."""
    body = _DOCUMENT.dump_json(
        _CheckpointDocument(VERSION, where.boot_id, where.pid_namespace, content)
    )
    return b"%08x\n" % crc32(body) + body


def decode(text: bytes, where: Where, now_ns: int) -> Checkpoint:
    """Return a checkpoint that was written here, before `now_ns`.

    Raises:
        CheckpointError: It is torn, of another version, boot or namespace, or inconsistent.
    """
    checksum, _, body = text.partition(b"\n")
    if checksum != b"%08x" % crc32(body):
        raise CheckpointError("it is torn or no checkpoint: its checksum is wrong")
    try:
        head = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"it is torn or no checkpoint: {error}") from error
    version = head[0] if isinstance(head, list) and head else None
    if version != VERSION:
        raise CheckpointError(f"it is of another version of disagg-node (version {version!r:.20})")
    try:
        file = _DOCUMENT.validate_python(head)
    except ValidationError as error:
        raise CheckpointError(f"it is torn or no checkpoint: {first_problem(error)}") from error
    if why := where.why_foreign(file.boot_id, file.pid_namespace):
        raise CheckpointError(why)
    wrong = next(_contradictions(file.content.ledger, now_ns), None)
    if wrong is not None:
        raise CheckpointError(f"it does not add up: {wrong}")
    return file.content


def _contradictions(ledger: LedgerCheckpoint, now_ns: int) -> Iterator[str]:
    """Yield impossible values, which we cannot have written."""
    sums = (ledger.removed, tuple(each.gpu_slice_ns for each in ledger.engines))
    engines_only = tuple(each._replace(gpu_slice_ns=()) for each in ledger.engines)
    others = ledger._replace(removed=(), engines=engines_only)
    for values, most in ((others, _MOST), (sums, _MOST_ADDED_UP)):
        # A NaN is not in the range either. A device without a number has −1.
        wrong = (number for number in _numbers(values) if not -1 <= number <= most)
        yield from (f"{number} is out of range" for number in wrong)
    if ledger.taken_ns > now_ns:
        yield "it was written in the future"
    engines = [each.assignment.engine for each in ledger.engines]
    devices = [each.device.gpu for each in ledger.devices]
    if len(set(engines)) < len(engines) or len(set(devices)) < len(devices):
        yield "it names an engine or a device twice"
    for device in ledger.devices:
        yield from _of_device(device, ledger.taken_ns)
    for engine in ledger.engines:
        yield from _of_engine(engine, ledger.taken_ns)


def _of_device(device: DeviceCheckpoint, taken_ns: int) -> Iterator[str]:
    name = device.device.gpu
    # An engine's end is one nanosecond after its death.
    if not device.start_ns <= device.watermark_ns <= taken_ns + 1:
        yield f"the watermark of {name}"
    if sum(length_ns for _, length_ns in device.cells) != device.watermark_ns - device.start_ns:
        yield f"the time of {name}"
    if not 0 < device.device.slices / GPU_SLICES == device.device.weight <= 1:
        yield f"the weight of {name}"
    if not all(start <= end <= taken_ns for start, end in device.absences):
        yield f"the absences of {name}"


def _of_engine(engine: EngineCheckpoint, taken_ns: int) -> Iterator[str]:
    name = engine.assignment.engine
    if not engine.history:
        yield f"the owners of {name}"
    for timeline in (*engine.live, *engine.ended):
        if not _in_order(timeline.pieces, timeline, taken_ns):
            yield f"the timeline of {name}"
        if timeline.pending is not None and not timeline.streams:
            yield f"the records of {name}"
        shared: list[PieceCheckpoint | PendingWork] = [*timeline.pieces]
        if timeline.pending is not None:
            shared.append(timeline.pending)
        if not all(0 <= s.prefill_share <= 1 and 0 <= s.dummy_share <= 1 for s in shared):
            yield f"the shares of {name}"


def _in_order(
    pieces: Sequence[PieceCheckpoint], timeline: TimelineCheckpoint, taken_ns: int
) -> bool:
    """Return whether pieces follow each other without a gap up to their timeline's mark."""
    edges = [*(piece.start_ns for piece in pieces), timeline.mark_ns]
    ends = [piece.end_ns for piece in pieces]
    return timeline.mark_ns <= taken_ns + 1 and all(
        start < end == following
        for start, end, following in zip(edges[:-1], ends, edges[1:], strict=True)
    )


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping):
        yield from (number for each in value.values() for number in _numbers(each))
    elif isinstance(value, tuple):
        yield from (number for each in value for number in _numbers(each))
    elif hasattr(value, "__slots__") and not isinstance(value, str):
        yield from (n for name in value.__slots__ for n in _numbers(getattr(value, name)))
