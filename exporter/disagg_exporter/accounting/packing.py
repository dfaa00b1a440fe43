"""Placing steps in time (accounting A2).

An engine stamps a step when it *reports* it, and reports burst and stall. What is certain is the
order, the length of each step and that none ends after its report. So spans are packed: in
order, without overlap, each as late as possible but ending no later than its limit. Pushing a
span earlier to make room is allowed down to the floor, below which time is already committed;
what does not fit there is the span's overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Placed(NamedTuple):
    """Where one span came to lie, and how much of it found no room."""

    start_ns: int
    end_ns: int
    overflow_ns: int


def pack(
    limits_ns: Sequence[int],
    lengths_ns: Sequence[int],
    floor_ns: int,
    ceiling_ns: int | None = None,
) -> list[Placed]:
    """Place spans of the given lengths, each ending by its limit, none below the floor.

    The spans come in order, the last ends by the ceiling if there is one. Placed length plus
    overflow is always the span's length.
    """
    placed: list[Placed] = []
    for limit_ns, length_ns in zip(reversed(limits_ns), reversed(lengths_ns), strict=True):
        end_ns = limit_ns if ceiling_ns is None else min(limit_ns, ceiling_ns)
        end_ns = max(end_ns, floor_ns)
        start_ns = max(end_ns - length_ns, floor_ns)
        placed.append(Placed(start_ns, end_ns, length_ns - (end_ns - start_ns)))
        ceiling_ns = start_ns
    placed.reverse()
    return placed


def pack_before(
    target_ns: int, limits_ns: Sequence[int], lengths_ns: Sequence[int], floor_ns: int
) -> list[Placed]:
    """Return the first places that `pack` would give: all that begin before the target.

    The target lies above the floor, so the later spans touch no floor: where they begin is all
    that has to be known of them.
    """
    count = len(limits_ns)
    ceiling_ns: int | None = None
    for limit_ns, length_ns in zip(reversed(limits_ns), reversed(lengths_ns), strict=True):
        end_ns = limit_ns if ceiling_ns is None or limit_ns < ceiling_ns else ceiling_ns
        if end_ns - length_ns < target_ns:
            break
        ceiling_ns = end_ns - length_ns
        count -= 1
    return pack(limits_ns[:count], lengths_ns[:count], floor_ns, ceiling_ns)
