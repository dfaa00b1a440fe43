"""The constants of the accounting rules (docs/accounting.md)."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_exporter.model import SECOND_NS


@dataclass(frozen=True, slots=True)
class Rules:
    """Delays, limits and ages in the accounting, all in nanoseconds.

    `packing_delay_ns`: how far before its record a span may still be moved (A2, A6).
    `live_ns`: silence after which an engine no longer holds the watermark back (A6).
    `seam_ns`: longest silence between messages or windows, 1 s apart, that is no gap (A2).
    `carry_over_limit_ns`: step time carried over per engine and device before it is cut (A2).
    `block_ns`: unattributed activity is committed per whole block (A5).
    `longest_step_ns`: an engine that promises work for longer than this is treated as silent, so
    that a hung engine with a live heartbeat cannot hold back memory and watermark for ever.
    `unclaimed_ns`: how long activity that no record explains may delay commits, so that another
    process's activity cannot do so for ever.
    `withdrawn_ns`: how long a step with withdrawn requests may, where no activity is read.
    `activity_fresh_ns`: how old the last activity sample may be for a device to count as watched.
    """

    packing_delay_ns: int = 6 * SECOND_NS
    live_ns: int = 30 * SECOND_NS
    seam_ns: int = 2 * SECOND_NS
    carry_over_limit_ns: int = 60 * SECOND_NS
    block_ns: int = 5 * SECOND_NS
    longest_step_ns: int = 600 * SECOND_NS
    unclaimed_ns: int = 300 * SECOND_NS
    withdrawn_ns: int = 60 * SECOND_NS
    activity_fresh_ns: int = 15 * SECOND_NS
