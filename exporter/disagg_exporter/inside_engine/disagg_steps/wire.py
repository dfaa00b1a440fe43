"""Step records on the wire: a fixed little-endian struct, one or more per SOCK_SEQPACKET packet.

Sent by the plugin inside an engine and by the demo's stand-in engines, read by the daemon. The
layout is versioned by its first byte and may only grow at its end.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

VERSION = 1
MAX_RECORD_BYTES = 256
MAX_PACKET_BYTES = 65536
SOCKET_ENVIRONMENT = "DISAGG_STEPS_SOCKET"

# Kinds of messages.
HELLO, STEP, HEARTBEAT = 1, 2, 3

# Flags. OVERLAPPED: with async scheduling, pipeline parallel, or kernels launched by the engine's
# own process, the engine times only its wait for a step (A2). `elapsed_ns` is that wait if each
# step is launched before the one before it is waited for, and in an older plugin's records;
# otherwise it is the held time. DUMMY: a data-parallel filler step. NO_DETAILS: the engine runs
# without iteration details, so steps carry no counts and no time. SIMULATED: the engine declares
# itself a stand-in. HELD_TOTALS: the engine is overlapped, and the `ns_*` totals are the time
# that its steps held their devices. IN_FLIGHT: on a hello or heartbeat; its `context_requests`
# are the requests that this process has handed to its engine and not received back, now and not
# as of the last step. A reader that does not know the flag ignores a heartbeat's counts anyway.
# LIMITS: on a hello; its `context_tokens` and `generation_requests` are the most tokens and
# requests that the engine takes into a step.
OVERLAPPED, DUMMY, NO_DETAILS, SIMULATED, HELD_TOTALS, IN_FLIGHT, LIMITS = 1, 2, 4, 8, 16, 32, 64

# The kinds of steps that running totals are kept for, in the order of the total_* arrays.
CONTEXT, GENERATION, MIXED, DUMMY_STEP = range(4)

# An overlapped engine's wait (its `elapsed_ns`) below this is none: 0.02 to 0.06 ms where it waited
# for nothing, 1 ms and more elsewhere (8B on an H200, vLLM 0.26). The step had ended before.
NO_WAIT_NS = 200_000

LAYOUT = struct.Struct("<BBHIIIQQqQ 4I I 3I 3I f I 4Q 4Q 3Q")
"""The fields of a `Record`, in their order."""


class Record(NamedTuple):
    """One record. `*_ns` are CLOCK_MONOTONIC; totals count since the incarnation began.

    `record_bytes` is the distance between the starts of records in a packet; 0 means that the
    packet is this one record. `deferred` are waiting requests blocked by something other than room
    (KV still to arrive). The four `steps_*` and `ns_*` totals are context, generation, mixed and
    dummy steps; `ns_*` sums `elapsed_ns`, or held time with the flag HELD_TOTALS.
    """

    version: int
    kind: int
    flags: int
    pid: int
    engine_index: int
    record_bytes: int
    incarnation: int
    sequence: int
    t_ns: int
    elapsed_ns: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    encoder_inputs: int
    computed_tokens: int
    cached_tokens: int
    external_tokens: int
    running: int
    waiting: int
    deferred: int
    kv_usage_ratio: float
    preemptions: int
    steps_context: int
    steps_generation: int
    steps_mixed: int
    steps_dummy: int
    ns_context: int
    ns_generation: int
    ns_mixed: int
    ns_dummy: int
    prefill_tokens: int
    decode_tokens: int
    drops: int


BYTES = LAYOUT.size

pack = LAYOUT.pack
"""Packs the fields of a `Record`, in their order; raises `struct.error` like `encode`."""


def encode(record: Record) -> bytes:
    """Pack `record`; raises `struct.error` for a field out of its range."""
    return LAYOUT.pack(*record)


def step_kind(
    *,
    context_requests: int,
    context_tokens: int,
    generation_tokens: int,
    computed_tokens: int,
    external_tokens: int,
    encoder_inputs: int = 0,
    dummy: bool = False,
) -> int:
    """Return which of the four totals a step belongs to; the one definition both ends use.

    A context step that computed no prompt but received one is the one-token recompute of requests
    whose KV was transferred: decode work (docs/accounting.md, A4).
    """
    if dummy:
        return DUMMY_STEP
    context = context_tokens > 0 or encoder_inputs > 0
    received = computed_tokens == 0 and external_tokens > 0 and context_tokens == context_requests
    if context and received and not encoder_inputs:
        context = False
        generation_tokens = max(1, generation_tokens)
    if context and generation_tokens > 0:
        return MIXED
    return CONTEXT if context else GENERATION
