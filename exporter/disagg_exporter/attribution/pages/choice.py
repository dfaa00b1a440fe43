"""Which source an engine is booked by: the best that has told something lately."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_exporter.model import Method

PATIENCE_NS = 10_000_000_000
"""How long the source in use may be silent before a worse one takes over.

Steps come with a heartbeat a second, pages are looked at once a second, and an engine that loads
or captures graphs may stall for some seconds without being lost.
"""

BEST_FIRST = tuple(method for method in Method if method is not Method.NONE)

Heard = Mapping[Method, int]
"""When each source told something last, in nanoseconds of CLOCK_MONOTONIC."""


def choose(current: Method, heard: Heard, now_ns: int) -> Method:
    """Return the source to book an engine by from now on.

    A better source than the one in use is taken as soon as it tells something; a worse one when the
    one in use has been silent for `PATIENCE_NS`. Without any that tells, it stays as it is.
    """
    fresh = {method for method, t_ns in heard.items() if now_ns - t_ns <= PATIENCE_NS}
    return next((method for method in BEST_FIRST if method in fresh), current)
