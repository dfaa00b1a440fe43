"""Lost records, made good from running totals (accounting invariant e).

Every message carries its stream's totals. Where a sequence number is missing between two
messages, the totals say how much step time and how many tokens the missing records held.
"""

from __future__ import annotations

from disagg_exporter.accounting.entry import Entry
from disagg_exporter.accounting.phase import Work
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import StepTotals


def restored(entry: Entry, sequence: int, totals: StepTotals, *, overlapped: bool) -> Entry | None:
    """Return one entry that stands for all records missing between a position and `entry`.

    The position is the last record before `entry` in its stream, and its running totals. None if
    nothing is missing. Its time is the lost step time of all kinds together, its phase the
    time-weighted mean of theirs (a lost mixed step counts by the tokens lost). Of an overlapped
    engine only tokens are restored: its elapsed times are mere waits (A2).
    """
    own_records = 0 if entry.marker else 1
    lost = entry.sequence - sequence - own_records
    if lost <= 0:
        return None
    elapsed = [
        max(after - before, 0)
        for after, before in zip(entry.totals.elapsed_ns, totals.elapsed_ns, strict=True)
    ]
    prefill_tokens = entry.totals.prefill_tokens - totals.prefill_tokens - entry.tokens[0]
    decode_tokens = entry.totals.decode_tokens - totals.decode_tokens - entry.tokens[1]
    tokens = max(prefill_tokens, 0), max(decode_tokens, 0)
    if not entry.marker:
        elapsed[entry.kind] = max(elapsed[entry.kind] - entry.elapsed_ns, 0)
    return Entry(
        t_ns=entry.t_ns,
        sequence=entry.sequence - own_records,
        elapsed_ns=0 if overlapped else sum(elapsed),
        work=_mean_work(elapsed, tokens),
        stream=entry.stream,
        tokens=tokens,
        totals=entry.totals,
        lost=lost,
    )


def _mean_work(elapsed: list[int], tokens: tuple[int, int]) -> Work:
    whole_ns, dummy_ns = sum(elapsed), elapsed[wire.DUMMY_STEP]
    useful_ns = whole_ns - dummy_ns
    mixed_share = tokens[0] / sum(tokens) if sum(tokens) else 0.5
    prefill_ns = elapsed[wire.CONTEXT] + elapsed[wire.MIXED] * mixed_share
    return Work(
        prefill_share=prefill_ns / useful_ns if useful_ns else 0.0,
        dummy_share=dummy_ns / whole_ns if whole_ns else 0.0,
    )
