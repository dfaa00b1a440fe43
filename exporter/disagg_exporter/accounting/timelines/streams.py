"""The sequence numbers of an engine's streams: finalized, repeated and missing records.

Every message carries its stream's totals. Where sequence numbers are missing between two messages,
the totals include the step time and tokens of the missing records (accounting invariant e).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from disagg_exporter.accounting.intervals.row_queue import Flags, Ints
from disagg_exporter.accounting.intervals.timeline import WorkShares
from disagg_exporter.accounting.timelines.records import Marks, Spans
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals
from disagg_exporter.steps.rows import (
    ELAPSED_TOTALS,
    LARGEST,
    STEPS_TOTALS,
    Rows,
    kind_of,
    tokens_of,
    totals_of,
)

MOST_MISSING = 2**40
"""Limit for the tokens or records missing in one gap: more than any engine reaches, and small
enough to sum millions of such gaps."""


@dataclass(slots=True, eq=False)
class RecordStream:
    """One stream of an engine.

    Everything up to `sequence` is finalized, with the totals `totals`; `highest` is the newest
    record that has arrived or is known to be lost. `resumed`: these are from a previous daemon,
    and records missing after them were sent while no daemon ran.
    """

    sequence: int
    totals: StepTotals
    highest: int
    resumed: bool = False

    @classmethod
    def before(cls, first: Step, *, held_totals: bool) -> RecordStream:
        """Return a stream with its first record as the baseline.

        With `held_totals`, the baseline excludes the record's own time, as far as it is known.
        """
        totals = first.totals
        if held_totals:
            elapsed_ns, kind = list(totals.elapsed_ns), kind_of(first)
            elapsed_ns[kind] = max(elapsed_ns[kind] - first.elapsed_ns, 0)
            context, generation, mixed, dummy = elapsed_ns
            totals = totals._replace(elapsed_ns=(context, generation, mixed, dummy))
        return cls(first.sequence - 1, totals, first.sequence - 1)

    def confirm(self, sequence: int) -> None:
        """Note that its engine has got no further: records missing from now on are losses."""
        if sequence == self.sequence == self.highest:
            self.resumed = False

    def fresh(self, rows: Rows, known: Callable[[], Ints]) -> Rows:
        """Return the records that are neither pending already (`known`) nor finalized."""
        sequence = rows["sequence"]
        if sequence[0] > self.highest and (sequence[1:] > sequence[:-1]).all():
            return rows  # the usual case
        first = np.zeros(len(rows), np.bool_)
        first[np.unique(sequence, return_index=True)[1]] = True
        return rows[first & (sequence > self.sequence) & ~np.isin(sequence, known())]


class MissingRecords(NamedTuple):
    """`records` are missing before the entry at `place`; `totals` are those before the gap.

    `no_daemon`: no daemon ran to receive them.
    """

    place: int
    records: int
    totals: StepTotals
    no_daemon: bool


class Restored(NamedTuple):
    """The content of the records that are missing between two messages."""

    elapsed_ns: int
    work: WorkShares
    tokens: tuple[int, int]


def steps_since(spans: Spans, count: int, streams: Sequence[RecordStream]) -> Ints:
    """Return by how many steps each of the first entries exceeds the one before it."""
    rows, marks = spans.rows[:count], spans.marks[:count]
    return _growth(rows, marks, streams, STEPS_TOTALS, lambda totals: totals.steps)


def held_totals_since(rows: Rows, marks: Marks, streams: Sequence[RecordStream]) -> Ints:
    """Return by how much each entry's totals of held time exceed those of the one before."""
    return _growth(rows, marks, streams, ELAPSED_TOTALS, lambda totals: totals.elapsed_ns)


def finalize(spans: Spans, count: int, streams: Sequence[RecordStream]) -> None:
    """Record in their streams that the first entries are finalized."""
    rows, marks = spans.rows[:count], spans.marks[:count]
    for stream, own in _each(streams, marks):
        sequence = rows["sequence"][own]
        if len(sequence) and sequence.max() > stream.sequence:
            newest = rows[own][int(sequence.argmax())]
            stream.sequence = int(newest["sequence"])
            stream.highest = max(stream.highest, stream.sequence)
            stream.totals = totals_of(newest)
            stream.resumed = False


def missing(rows: Rows, marks: Marks, streams: Sequence[RecordStream]) -> Iterator[MissingRecords]:
    """Yield the gaps in the sequence numbers."""
    for stream, own in _each(streams, marks):
        sequence, marker = rows["sequence"][own], marks["marker"][own]
        if _is_whole(sequence, stream.sequence) and not marker.any():
            continue  # the usual case
        before, newest = _newest_before(sequence, stream.sequence)
        lost = sequence - before - ~marker
        if not (lost > 0).any():
            continue
        at = np.arange(len(rows))[own]
        for place in np.flatnonzero(lost > 0).tolist():
            last = newest[place]
            totals = stream.totals if last < 0 else totals_of(rows[at[last]])
            no_daemon = bool(last < 0 and stream.resumed)
            yield MissingRecords(int(at[place]), int(lost[place]), totals, no_daemon)


def restored(before: StepTotals, after: Step, kind: int | None, *, timed: bool) -> Restored:
    """Return the content of a gap between a stream's totals and a later message.

    `kind` is that of the later message's own step, None for a heartbeat. The time is the lost step
    time of all kinds together, its phase their time-weighted mean (a lost mixed step counts by
    the tokens lost). Without `timed` only tokens are restored: an older plugin's totals for an
    overlapped engine sum mere waits (A2).
    """
    totals = after.totals
    pairs = zip(totals.elapsed_ns, before.elapsed_ns, strict=True)
    elapsed = [max(late - early, 0) for late, early in pairs]
    own_tokens = (0, 0)
    if kind is not None:
        elapsed[kind] = max(elapsed[kind] - after.elapsed_ns, 0)
        own_tokens = tokens_of(after, kind)
    prefill_tokens = totals.prefill_tokens - before.prefill_tokens - own_tokens[0]
    decode_tokens = totals.decode_tokens - before.decode_tokens - own_tokens[1]
    tokens = min(max(prefill_tokens, 0), MOST_MISSING), min(max(decode_tokens, 0), MOST_MISSING)
    elapsed_ns = min(sum(elapsed), LARGEST) if timed else 0
    return Restored(elapsed_ns, _mean_work(elapsed, tokens), tokens)


def _mean_work(elapsed: list[int], tokens: tuple[int, int]) -> WorkShares:
    whole_ns, dummy_ns = sum(elapsed), elapsed[wire.DUMMY_STEP]
    useful_ns = whole_ns - dummy_ns
    mixed_share = tokens[0] / sum(tokens) if sum(tokens) else 0.5
    prefill_ns = elapsed[wire.CONTEXT] + elapsed[wire.MIXED] * mixed_share
    return WorkShares(
        prefill_share=prefill_ns / useful_ns if useful_ns else 0.0,
        dummy_share=dummy_ns / whole_ns if whole_ns else 0.0,
    )


def _growth(
    rows: Rows,
    marks: Marks,
    streams: Sequence[RecordStream],
    fields: Sequence[str],
    totals_of_kinds: Callable[[StepTotals], Sequence[int]],
) -> Ints:
    """Return by how much the sum of some totals exceeds that of the newest entry before it."""
    sums = np.sum([rows[name] for name in fields], axis=0)
    grown = np.zeros(len(rows), np.int64)
    for stream, own in _each(streams, marks):
        _, newest = _newest_before(rows["sequence"][own], stream.sequence)
        ours, finalized = sums[own], sum(totals_of_kinds(stream.totals))
        grown[own] = ours - np.where(newest < 0, finalized, ours[newest])
    return grown


def _each(
    streams: Sequence[RecordStream], marks: Marks
) -> Iterator[tuple[RecordStream, slice | Flags]]:
    """Yield each stream that has entries, and the selection of them."""
    if len(streams) == 1:
        yield streams[0], slice(None)
        return
    numbers = marks["stream"]
    for number in np.unique(numbers).tolist():
        yield streams[number], numbers == number


def _is_whole(sequence: Ints, finalized: int) -> bool:
    """Return whether the numbers continue the last finalized one without a gap."""
    if not len(sequence):
        return True
    first = int(sequence[0])
    if first != finalized + 1 or int(sequence[-1]) - first + 1 != len(sequence):
        return False
    return bool((sequence[1:] > sequence[:-1]).all())


def _newest_before(sequence: Ints, finalized: int) -> tuple[Ints, Ints]:
    """Return the highest number before each record, and its place (-1: finalized)."""
    highest = np.maximum.accumulate(np.concatenate(([finalized], sequence)))
    places = np.where(sequence > highest[:-1], np.arange(len(sequence)), -1)
    newest = np.maximum.accumulate(np.concatenate(([-1], places)))
    return highest[:-1], newest[:-1]
