"""Step records as numpy columns, so that a second of an engine's records is handled at once.

A row has the fields of a `Step` and its totals. Implausibly large numbers are limited to `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals

Rows = NDArray[np.void]
"""Step records: an array of `ROW`."""

_TOTALS = wire.Record._fields[wire.Record._fields.index("steps_context") :]
_STEP_FIELDS = Step._fields[: Step._fields.index("dummy")]
_FLOATS = frozenset({"kv_usage_ratio"})
NOT_REPORTED = -1
"""In `decode_kv_tokens` and `kv_usage_ratio`: the engine does not report it."""
_KV_USAGE = _STEP_FIELDS.index("kv_usage_ratio")

ROW = np.dtype(
    [(name, np.float64 if name in _FLOATS else np.int64) for name in _STEP_FIELDS]
    + [("dummy", np.bool_), ("decode_kv_tokens", np.int64)]
    + [(name, np.int64) for name in _TOTALS],
    align=True,
)

STEPS_TOTALS = _TOTALS[:4]
"""The total steps so far: context, generation, mixed, dummy."""
ELAPSED_TOTALS = _TOTALS[4:8]
"""Their total time, in the same order."""
REST_OF_TOTALS = _TOTALS[8:]
"""The total prefill tokens, decode tokens and drops."""

# So many decode steps, each followed by another, show whether an engine waits for them.
_ENOUGH_DECODES = 16

LARGEST = 2**60
"""Replaces anything larger: 36 years in nanoseconds. The sum of all kinds' totals still fits."""


def rows_of(steps: Iterable[Step]) -> Rows:
    """Return steps as rows."""
    flat = [_flat(step) for step in steps]
    try:
        return np.array(flat, ROW)
    except OverflowError:
        return np.array([tuple(map(_cut, row)) for row in flat], ROW)


def steps_of(rows: Rows) -> list[Step]:
    """Return rows as steps."""
    return [_step(row) for row in rows.tolist()]


def totals_of(row: np.void) -> StepTotals:
    """Return the running totals of one row."""
    flat: tuple[Any, ...] = row.item()  # type: ignore[assignment] # bytes only without fields
    return _totals(flat)


def joined(parts: Iterable[Rows]) -> Rows:
    """Return rows concatenated in a new array.

    As bytes: `np.concatenate` works field by field, which takes 20 µs.
    """
    return np.frombuffer(bytearray().join([part.tobytes() for part in parts]), ROW)


def kinds_of(rows: Rows) -> NDArray[np.int64]:
    """Return the kind of each step: `wire.step_kind`, vectorized."""
    tokens, encodes = rows["context_tokens"], rows["encoder_inputs"] > 0
    context = (tokens > 0) | encodes
    if not context.any() and not rows["dummy"].any():
        return np.full(len(rows), wire.GENERATION)
    received = (rows["computed_tokens"] == 0) & (rows["external_tokens"] > 0)
    received &= (tokens == rows["context_requests"]) & ~encodes
    context &= ~received
    kinds = np.where(rows["generation_tokens"] > 0, wire.MIXED, wire.CONTEXT)
    kinds[~context] = wire.GENERATION
    kinds[rows["dummy"]] = wire.DUMMY_STEP
    return kinds


def ends_known(
    rows: Rows, kinds: NDArray[np.int64], first: Sequence[int] = (0,)
) -> NDArray[np.bool_]:
    """Return which steps of an engine that adds up held time have two known ends.

    Where such an engine did not wait for a step, its record is late by the launch of the next one.
    Of decode steps the plugin infers the end (accounting A2). Before the first, all is known.

    If it did not wait for most of its decode steps that another follows, it is no faster than it
    launches (a small model): every record is late by a launch, and the time between two is that of
    a step.

    Args:
        rows: Records in order, of one stream or of several after one another.
        kinds: The kinds of their steps.
        first: Where each stream begins.
    """
    waited, decodes = rows["elapsed_ns"] >= wire.NO_WAIT_NS, kinds == wire.GENERATION
    known: NDArray[np.bool_] = decodes | waited
    known[1:] &= known[:-1].copy()
    if len(rows) < _ENOUGH_DECODES:
        return known
    followed = np.zeros(len(rows), int)
    followed[:-1] = decodes[:-1] & decodes[1:]
    counts = np.add.reduceat(followed, first)
    launches = counts >= _ENOUGH_DECODES
    if launches.any():
        launches &= 2 * np.add.reduceat(followed * waited, first) < counts
        known |= np.repeat(launches, np.diff(first, append=len(rows)))
    return known


def kind_of(step: Step) -> int:
    """Return the step's kind, by the definition that the engine's own totals use too."""
    if not (step.context_tokens or step.encoder_inputs or step.dummy):
        return wire.GENERATION  # a shortcut for nearly all steps, with the same result
    return wire.step_kind(
        context_requests=step.context_requests,
        context_tokens=step.context_tokens,
        generation_tokens=step.generation_tokens,
        computed_tokens=step.computed_tokens,
        external_tokens=step.external_tokens,
        encoder_inputs=step.encoder_inputs,
        dummy=step.dummy,
    )


def tokens_of(step: Step, kind: int) -> tuple[int, int]:
    """Return the (prefill, decode) tokens the step computed; cached tokens count for neither."""
    if kind == wire.DUMMY_STEP:
        return 0, 0
    if kind == wire.GENERATION:
        return 0, step.context_tokens + step.generation_tokens
    return step.context_tokens, step.generation_tokens


def unfinished_tokens(
    grown: NDArray[np.int64], ended: NDArray[np.bool_], before: float
) -> NDArray[np.float64]:
    """Return after each step the tokens computed so far of prompts that have not ended.

    Each is max(the one before + `grown`, 0), and 0 where all have `ended`: there enough is
    subtracted that nothing is left. A sum that may not fall below 0 is the plain sum less its
    lowest point so far, if that is below 0.

    Args:
        grown: Tokens computed in each step, less those of the prompts that ended in it.
        ended: Whether no prompt is under way after a step.
        before: The value before the first step.
    """
    changes = grown.astype(np.float64)
    if ended.any():
        changes[ended] -= before + np.maximum(changes, 0.0).sum()
    sums = before + np.cumsum(changes)
    return np.asarray(sums - np.minimum(np.minimum.accumulate(sums), 0.0))


def _step(row: tuple[Any, ...]) -> Step:
    count = len(_STEP_FIELDS)
    dummy, kv_tokens = row[count : count + 2]
    rest = dummy, _totals(row), None if kv_tokens == NOT_REPORTED else kv_tokens
    step = Step._make(row[:count] + rest)
    return step._replace(kv_usage_ratio=None) if row[_KV_USAGE] == NOT_REPORTED else step


def _totals(row: tuple[Any, ...]) -> StepTotals:
    return StepTotals(row[-11:-7], row[-7:-3], *row[-3:])


def _flat(step: Step) -> tuple[Any, ...]:
    steps, elapsed, *rest = step.totals
    kv_tokens = NOT_REPORTED if step.decode_kv_tokens is None else step.decode_kv_tokens
    if step.kv_usage_ratio is None:
        step = step._replace(kv_usage_ratio=float(NOT_REPORTED))
    return (*step[: len(_STEP_FIELDS)], step.dummy, kv_tokens, *steps, *elapsed, *rest)


def _cut(value: Any) -> Any:
    return max(min(value, LARGEST), -LARGEST) if type(value) is int else value
