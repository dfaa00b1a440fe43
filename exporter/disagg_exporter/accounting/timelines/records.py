"""Records as they arrive: their rows, each with the accounting's marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.row_queue import Ints
from disagg_exporter.accounting.intervals.timeline import CODES, mean_shares
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Reason, Step
from disagg_exporter.model.checkpoints import PendingWork
from disagg_exporter.steps.rows import LARGEST, Rows, joined, kinds_of, rows_of, steps_of

NO_GAP = -1
"""In `gap`: the entry says nothing about the time after it."""

MARK = np.dtype(
    [
        ("stream", np.int64),
        ("kind", np.int64),
        ("prefill_share", np.float64),
        ("dummy_share", np.float64),
        ("prefill_tokens", np.int64),
        ("decode_tokens", np.int64),
        ("gap", np.int64),
        ("pending", np.bool_),
        ("undivided", np.bool_),
        ("marker", np.bool_),
        ("begun", np.bool_),
        ("began_ns", np.int64),
        ("lost", np.int64),
        ("no_daemon", np.bool_),
    ]
)
"""The accounting's state of a record, beside its row.

`pending`: work is left after it; `gap` is the code of the reason why its engine is idle then.
`undivided`: its time is yet to be divided between the phases; its shares are provisional.
`marker`: not a record but a heartbeat that reports a newer one than was received; no length.
`lost`: how many missing records it stands for. Such an entry is rebuilt at each pass, so that the
missing ones may still arrive, until it is `begun`: partly finalized from `began_ns` on, with the
remaining length.
`no_daemon`: the records are missing because no daemon ran, not because of a loss.
"""

Marks = NDArray[np.void]
"""An array of `MARK`."""


class Tokens(NamedTuple):
    """Finalized tokens of both phases, and when their steps were reported."""

    t_ns: Ints
    prefill: Ints
    decode: Ints


class Spans(NamedTuple):
    """Entries in the order in which they were made, with the lengths of their spans.

    `made_up`: some of them stand for lost records.
    """

    rows: Rows
    marks: Marks
    lengths_ns: Ints
    made_up: bool = False

    def checkpoint(self) -> PendingWork:
        """Return all entries joined in one."""
        marks = self.marks
        # The sum of what hostile engines claim to have been lost may exceed 63 bits.
        lengths = self.lengths_ns.astype(np.float64)
        return PendingWork(
            min(int(lengths.sum()), LARGEST),
            *mean_shares(lengths, marks["prefill_share"], marks["dummy_share"]),
            int(marks["prefill_tokens"].sum()),
            int(marks["decode_tokens"].sum()),
            lost_records(marks),
            int(marks["began_ns"].max(initial=0)),
        )


def lost_records(marks: Marks) -> int:
    """Return how many records were lost, without those made while no daemon ran."""
    lost = marks["lost"]
    return int(lost[~marks["no_daemon"]].sum()) if lost.any() else 0


def gathered(received: Sequence[tuple[Step | Rows, int]]) -> Rows:
    """Return records as new rows, none stamped later than it was received."""
    if all(isinstance(records, Step) for records, _ in received):
        parts = [rows_of(records for records, _ in received if isinstance(records, Step))]
    else:
        parts = [
            rows_of([records]) if isinstance(records, Step) else records for records, _ in received
        ]
    rows = joined(parts)
    lengths = [1 if isinstance(records, Step) else len(records) for records, _ in received]
    received_ns = np.repeat([now_ns for _, now_ns in received], lengths)
    # CLOCK_MONOTONIC is never negative.
    rows["t_ns"] = np.clip(rows["t_ns"], 0, received_ns)
    return rows


def is_at_work(received: Sequence[Step | Rows], sequence: int, after_ns: int) -> bool:
    """Return whether the last record has this sequence number, is the newest and leaves work."""
    last = received[-1] if isinstance(received[-1], Step) else steps_of(received[-1][-1:])[0]
    if last.sequence != sequence or not (last.running > 0 or last.waiting > 0):
        return False
    newest_ns = [
        each.t_ns if isinstance(each, Step) else int(each["t_ns"].max()) for each in received
    ]
    return last.t_ns >= max(after_ns, *newest_ns)


def marked(rows: Rows, stream: int, split: StepSplit) -> Marks:
    """Return the marks of new records of a stream."""
    kinds = kinds_of(rows)
    marks = np.zeros(len(rows), MARK)
    marks["stream"], marks["kind"] = stream, kinds
    marks["undivided"] = True
    marks["pending"] = pending = (rows["running"] > 0) | (rows["waiting"] > 0)
    marks["gap"] = CODES[Reason.HOST_GAP]
    if not pending.all():
        resting = np.where(rows["deferred"] > 0, CODES[Reason.KV_WAIT], CODES[Reason.NO_REQUEST])
        marks["gap"] = np.where(pending, CODES[Reason.HOST_GAP], resting)
    context, generated = rows["context_tokens"], rows["generation_tokens"]
    shares = split.preview(rows, kinds)
    if (kinds == wire.GENERATION).all():
        marks["decode_tokens"] = context + generated
        return marks
    mixed = kinds == wire.MIXED
    prefill = mixed | (kinds == wire.CONTEXT)
    marks["prefill_tokens"] = np.where(prefill, context, 0)
    decode = np.where(prefill, generated, context + generated)
    marks["decode_tokens"] = np.where(kinds == wire.DUMMY_STEP, 0, decode)
    marks["prefill_share"] = np.where(mixed, shares, kinds == wire.CONTEXT)
    marks["dummy_share"] = kinds == wire.DUMMY_STEP
    return marks
