"""Maps replies to the names of gRPC status codes."""

from __future__ import annotations

from disagg_cluster.control.messages import ControlReply, ReplyOutcome
from disagg_cluster.control.refusal import RefusalReason

_MOST_BYTES = 600
"""Each byte may take three in an encoded header."""

_OUTCOMES = {
    ReplyOutcome.INVALID: "INVALID_ARGUMENT",
    ReplyOutcome.TIMEOUT: "DEADLINE_EXCEEDED",
    ReplyOutcome.FAILED: "INTERNAL",
}
_REASONS: dict[str, str] = {
    # These may succeed on a later retry.
    RefusalReason.STOPPING: "UNAVAILABLE",
    RefusalReason.CHANGE_UNDER_WAY: "ABORTED",
    RefusalReason.CHANGED_SINCE: "ABORTED",
    RefusalReason.TOO_MANY: "RESOURCE_EXHAUSTED",
    RefusalReason.UNKNOWN_WORKER: "NOT_FOUND",
    RefusalReason.REUSED_ID: "ALREADY_EXISTS",
    RefusalReason.NOT_UNDERSTOOD: "INVALID_ARGUMENT",
    RefusalReason.NOT_ALLOWED: "PERMISSION_DENIED",
    RefusalReason.UNAUTHENTICATED: "UNAUTHENTICATED",
}


def code_name(reply: ControlReply) -> str:
    """The name of the status code; OK if the reply is not an error."""
    if reply.outcome is ReplyOutcome.REFUSED:
        # All others fail until something else has been changed.
        return _REASONS.get(reply.reason, "FAILED_PRECONDITION")
    return _OUTCOMES.get(reply.outcome, "OK")


def details(reply: ControlReply) -> str:
    """The status message: why, and what to do; bounded to what metadata may hold."""
    text = "; ".join(filter(None, (reply.text, *reply.problems, reply.way_out)))
    return text.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")
