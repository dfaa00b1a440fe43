"""The sequence numbers of an engine's streams: what is in the books, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.timelines.entry import Marks, Spans
from disagg_exporter.model import StepTotals
from disagg_exporter.steps.rows import ELAPSED_TOTALS, STEPS_TOTALS, Rows, totals_of


@dataclass(slots=True, eq=False)
class RecordStream:
    """One counter of an engine.

    Everything up to `sequence` is in the books, where its totals were `totals`; `highest` is the
    newest record of it that came, or is known to be lost. `resumed`: that was in another daemon's
    time, and what is missing after it was told to nobody.
    """

    sequence: int
    totals: StepTotals
    highest: int
    resumed: bool = False

    def confirm(self, sequence: int) -> None:
        """Take that its engine has got no further: what is missing from now on was told to us."""
        if sequence == self.sequence == self.highest:
            self.resumed = False


class MissingRecords(NamedTuple):
    """`records` are missing before the entry at `place`; `totals` are those before them.

    `unheard`: no daemon was there to receive them.
    """

    place: int
    records: int
    totals: StepTotals
    unheard: bool


def steps_told(spans: Spans, count: int, streams: Sequence[RecordStream]) -> NDArray[np.int64]:
    """Return how many steps each of the first entries tells of: since the one settled before it."""
    rows, marks = spans.rows[:count], spans.marks[:count]
    made = np.sum([rows[name] for name in STEPS_TOTALS], axis=0)
    told = np.zeros(count, np.int64)
    for stream, ours in _each(streams, marks):
        sequence = rows["sequence"][ours]
        _, newest = _newest_before(sequence, stream.sequence)
        sums = made[ours]
        told[ours] = sums - np.where(newest < 0, sum(stream.totals.steps), sums[newest])
    return told


def enter(spans: Spans, count: int, streams: Sequence[RecordStream]) -> None:
    """Note in their streams that the first entries are in the books."""
    rows, marks = spans.rows[:count], spans.marks[:count]
    for stream, ours in _each(streams, marks):
        sequence = rows["sequence"][ours]
        if len(sequence) and sequence.max() > stream.sequence:
            newest = rows[ours][int(sequence.argmax())]
            stream.sequence = int(newest["sequence"])
            stream.highest = max(stream.highest, stream.sequence)
            stream.totals = totals_of(newest)
            stream.resumed = False


def held_totals_since(
    rows: Rows, marks: Marks, streams: Sequence[RecordStream]
) -> NDArray[np.int64]:
    """Return by how much each entry's totals of held time exceed those of the one before it."""
    held = np.sum([rows[name] for name in ELAPSED_TOTALS], axis=0)
    grown = np.zeros(len(rows), np.int64)
    for stream, ours in _each(streams, marks):
        _, newest = _newest_before(rows["sequence"][ours], stream.sequence)
        sums = held[ours]
        grown[ours] = sums - np.where(newest < 0, sum(stream.totals.elapsed_ns), sums[newest])
    return grown


def missing(rows: Rows, marks: Marks, streams: Sequence[RecordStream]) -> Iterator[MissingRecords]:
    """Yield where records are missing."""
    for stream, ours in _each(streams, marks):
        sequence, marker = rows["sequence"][ours], marks["marker"][ours]
        if _is_whole(sequence, stream.sequence) and not marker.any():
            continue  # as nearly always
        before, newest = _newest_before(sequence, stream.sequence)
        lost = sequence - before - ~marker
        if not (lost > 0).any():
            continue
        at = np.arange(len(rows))[ours]
        for place in np.flatnonzero(lost > 0).tolist():
            last = newest[place]
            totals = stream.totals if last < 0 else totals_of(rows[at[last]])
            unheard = last < 0 and stream.resumed
            yield MissingRecords(int(at[place]), int(lost[place]), totals, bool(unheard))


def _each(
    streams: Sequence[RecordStream], marks: Marks
) -> Iterator[tuple[RecordStream, slice | NDArray[np.bool_]]]:
    """Yield the streams that entries are of, and which are theirs."""
    if len(streams) == 1:
        yield streams[0], slice(None)
        return
    numbers = marks["stream"]
    for number in np.unique(numbers).tolist():
        yield streams[number], numbers == number


def _is_whole(sequence: NDArray[np.int64], settled: int) -> bool:
    """Say whether numbers follow each other, and the last one settled, without a gap."""
    if not len(sequence):
        return True
    first = int(sequence[0])
    if first != settled + 1 or int(sequence[-1]) - first + 1 != len(sequence):
        return False
    return bool((sequence[1:] > sequence[:-1]).all())


def _newest_before(
    sequence: NDArray[np.int64], settled: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the highest number before each record, and where it stands (-1: in the books)."""
    highest = np.maximum.accumulate(np.concatenate(([settled], sequence)))
    places = np.where(sequence > highest[:-1], np.arange(len(sequence)), -1)
    newest = np.maximum.accumulate(np.concatenate(([-1], places)))
    return highest[:-1], newest[:-1]
