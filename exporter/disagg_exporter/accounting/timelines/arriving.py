"""Records as they arrive: put together, freed of repetitions, and what we make of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.timeline import CODES
from disagg_exporter.accounting.timelines.entry import MARK, Marks
from disagg_exporter.accounting.timelines.streams import RecordStream
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Reason, Step
from disagg_exporter.steps.rows import Rows, joined, kinds_of, rows_of


def gathered(told: Sequence[tuple[Step | Rows, int]]) -> Rows:
    """Return records as rows of their own, none from after the moment when it was heard."""
    if all(isinstance(what, Step) for what, _ in told):
        parts = [rows_of(what for what, _ in told if isinstance(what, Step))]
    else:
        parts = [rows_of([what]) if isinstance(what, Step) else what for what, _ in told]
    rows = joined(parts)
    lengths = [1 if isinstance(what, Step) else len(what) for what, _ in told]
    now_ns = np.repeat([now for _, now in told], lengths)
    # CLOCK_MONOTONIC is never negative.
    rows["t_ns"] = np.clip(rows["t_ns"], 0, now_ns)
    return rows


def fresh(rows: Rows, stream: RecordStream, known: Callable[[], NDArray[np.int64]]) -> Rows:
    """Return the records that are neither there already (`known`) nor older than the books."""
    sequence = rows["sequence"]
    if sequence[0] > stream.highest and (sequence[1:] > sequence[:-1]).all():
        return rows  # as nearly always
    first = np.zeros(len(rows), np.bool_)
    first[np.unique(sequence, return_index=True)[1]] = True
    return rows[first & (sequence > stream.sequence) & ~np.isin(sequence, known())]


def marked(rows: Rows, stream: int, split: StepSplit) -> Marks:
    """Return what we make of new records of a stream."""
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
    shares = split.glance(rows, kinds)
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
