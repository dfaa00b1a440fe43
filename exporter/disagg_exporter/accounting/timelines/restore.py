"""Lost records, made good from running totals (accounting invariant e).

Every message carries its stream's totals. Where a sequence number is missing between two
messages, the totals say how much step time and how many tokens the missing records held.
"""

from __future__ import annotations

from typing import NamedTuple

from disagg_exporter.accounting.intervals.phase import WorkShares
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals
from disagg_exporter.steps.rows import LARGEST, tokens_of

MOST = 2**40
"""So many tokens, or records, are believed to be missing at once: beyond what any engine reaches,
and few enough for sums of millions of such gaps."""


class Restored(NamedTuple):
    """What the records held that are missing between two messages."""

    elapsed_ns: int
    work: WorkShares
    tokens: tuple[int, int]


def restored(before: StepTotals, after: Step, kind: int | None, *, timed: bool) -> Restored:
    """Return what lies between a stream's totals and a later message that follows a gap.

    `kind` is that of the later message's own step, None for a heartbeat. The time is the lost step
    time of all kinds together, its phase the time-weighted mean of theirs (a lost mixed step
    counts by the tokens lost). Without `timed` only tokens are restored: the totals
    are of mere waits, as an older plugin tells them of an overlapped engine (A2).
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
    tokens = min(max(prefill_tokens, 0), MOST), min(max(decode_tokens, 0), MOST)
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
