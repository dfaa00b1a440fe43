"""Tells what an engine without new requests still has to do, and when its peers need it no more.

Pure. A router selects both engines of a request before it sends it to either, so a removed engine
may still get requests for as long as their prefill takes. A prefill engine keeps the KV of answered
prompts until their decode engine has fetched it.
"""

from __future__ import annotations

import math

from disagg_exporter.model import EnginePage
from disagg_exporter.model.counted import counted

SETTLE_NS = 500_000_000
"""Requests assigned before an engine was removed have arrived after this time."""

UNKNOWN_ROUTE = "requests may still be sent to it (the router does not tell)"
FETCHED_FROM = "decode engines still fetch KV from it"


def remaining_text(
    page: EnginePage | None, since_ns: int, pending: float | None, pending_ns: int
) -> str:
    """What an engine still has to do; empty once it has no request and none is on its way.

    Args:
        page: Its last page.
        since_ns: When new requests were stopped.
        pending: How many requests the router will still send it; None without a router.
        pending_ns: When the router reported that.
    """
    settled_ns = since_ns + SETTLE_NS
    if page is None or page.t_ns <= settled_ns:
        return "requests may still run (its page was not read since)"
    if page.running is None:
        return "requests may still run (its page does not tell)"
    if requests := page.running + (page.waiting or 0.0):
        return f"{_requests(requests)} still run{'s' if requests == 1 else ''}"
    if pending is None:
        return ""
    if math.isinf(pending) or pending_ns <= settled_ns:
        return UNKNOWN_ROUTE
    return f"the router still has {_requests(pending)} for it" if pending else ""


def _requests(number: float) -> str:
    return counted(math.ceil(number), "request")


def has_fetched(then: EnginePage, now: EnginePage) -> bool:
    """Whether all requests that waited in a decode engine have since begun, assuming FIFO order."""
    if not now.waiting:
        return now.t_ns > then.t_ns
    ended = _ended(now) - _ended(then)
    if ended < 0:
        return True  # it was restarted, and its requests are gone
    begun = ended + (now.running or 0.0) - (then.running or 0.0)
    return begun >= (then.waiting or 0.0)


def _ended(page: EnginePage) -> float:
    duration = page.serving.duration
    return 0.0 if duration is None else duration.total
