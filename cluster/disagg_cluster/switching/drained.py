"""Whether an engine that gets no new requests has none left, and its peers need nothing of it.

Pure. A router chooses both engines of a request before it sends it to either, so one that is
taken out may get requests for as long as their prefill takes. And a prefill engine holds the KV of
prompts that it has answered until their decode engine has fetched it.
"""

from __future__ import annotations

from disagg_exporter.model import EnginePage

SETTLE_NS = 500_000_000
"""What was chosen before an engine was taken out has arrived by so much later."""


def is_idle(page: EnginePage | None, since_ns: int, pending: float | None, pending_ns: int) -> bool:
    """Whether an engine has no request, and none is on its way.

    Args:
        page: Its last page.
        since_ns: When it was to get nothing new.
        pending: How many requests the router will still send it, None where there is no router.
        pending_ns: When the router said so.
    """
    settled_ns = since_ns + SETTLE_NS
    if page is None or page.t_ns <= settled_ns or page.running != 0 or page.waiting:
        return False
    return pending is None or (pending == 0 and pending_ns > settled_ns)


def has_fetched(then: EnginePage, now: EnginePage) -> bool:
    """Whether all requests that waited in a decode engine have begun since, first come first."""
    if not now.waiting:
        return now.t_ns > then.t_ns
    ended = _ended(now) - _ended(then)
    if ended < 0:
        return True  # it began anew, and what it had is gone
    begun = ended + (now.running or 0.0) - (then.running or 0.0)
    return begun >= (then.waiting or 0.0)


def _ended(page: EnginePage) -> float:
    duration = page.serving.duration
    return 0.0 if duration is None else duration.total
