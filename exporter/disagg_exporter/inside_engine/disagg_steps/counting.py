"""Adds a step to the running totals of its stream."""

from __future__ import annotations

from typing import NamedTuple

from . import wire

# Offsets of the totals in their list, in the order of the last fields of `wire.Record`: steps of
# each kind, nanoseconds of each kind, tokens of each phase, drops.
STEPS, ELAPSED, PREFILL_TOKENS, DECODE_TOKENS, DROPS = 0, 4, 8, 9, 10
NOTHING_YET = (0,) * 11


class Facts(NamedTuple):
    """Facts of one step, named and ordered as in `wire.Record`.

    The daemon's `Step` has the same fields: nothing in this folder may import the daemon.
    """

    elapsed_ns: int = 0
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    encoder_inputs: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage_ratio: float = 0.0
    preemptions: int = 0


def count(
    totals: list[int], facts: Facts, *, held_ns: int | None = None, dummy: bool = False
) -> None:
    """Add one step to the totals: its kind, its time and the tokens it computed.

    `held_ns` is its time where that is not its `elapsed_ns`.
    """
    # The result of `step_kind` without the call: nearly all steps of a decode engine are like this.
    kind = wire.GENERATION
    if facts.context_tokens or facts.encoder_inputs or dummy:
        kind = wire.step_kind(
            context_requests=facts.context_requests,
            context_tokens=facts.context_tokens,
            generation_tokens=facts.generation_tokens,
            computed_tokens=facts.computed_tokens,
            external_tokens=facts.external_tokens,
            encoder_inputs=facts.encoder_inputs,
            dummy=dummy,
        )
    totals[STEPS + kind] += 1
    totals[ELAPSED + kind] += facts.elapsed_ns if held_ns is None else held_ns
    if kind == wire.GENERATION:
        # Context tokens in a generation step are recomputes of transferred prompts (A4).
        totals[DECODE_TOKENS] += facts.context_tokens + facts.generation_tokens
    elif kind != wire.DUMMY_STEP:
        totals[PREFILL_TOKENS] += facts.context_tokens
        totals[DECODE_TOKENS] += facts.generation_tokens
