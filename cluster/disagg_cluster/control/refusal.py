"""Why a request is not granted, as a word for programs and as sentences for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RefusalReason(StrEnum):
    """What speaks against a request: by which refusals are counted.

    Of the daemon: it is `stopping`. Of the request: its id was used for another (`reused_id`), its
    worker is not there (`unknown_worker`), it is `not_understood`, nobody is launched here
    (`no_workers`). Of the moment: another `change_under_way`; the worker is `paused`, or is itself
    being stopped or started (`worker_busy`), or `not_ready`. Of what it asks for: a role that is
    not moved (`fixed_role`), a router that keeps its engines (`fixed_router`), the `last_of_role`
    of a model, a role in which the worker `does_not_fit`, a `stranger` that holds a GPU. Of the
    node file: there is none (`no_node_file`), it has problems (`wrong_node_file`), it says
    something else than was shown (`changed_since`). Of who asks: `not_allowed`, `unauthenticated`
    (no token, or a wrong one), a handshake of `tls` that failed, `too_slow`, `too_many` at a time.
    """

    STOPPING = "stopping"
    REUSED_ID = "reused_id"
    UNKNOWN_WORKER = "unknown_worker"
    NOT_UNDERSTOOD = "not_understood"
    NO_WORKERS = "no_workers"
    CHANGE_UNDER_WAY = "change_under_way"
    PAUSED = "paused"
    WORKER_BUSY = "worker_busy"
    NOT_READY = "not_ready"
    FIXED_ROLE = "fixed_role"
    FIXED_ROUTER = "fixed_router"
    LAST_OF_ROLE = "last_of_role"
    DOES_NOT_FIT = "does_not_fit"
    STRANGER = "stranger"
    NO_NODE_FILE = "no_node_file"
    WRONG_NODE_FILE = "wrong_node_file"
    CHANGED_SINCE = "changed_since"
    NOT_ALLOWED = "not_allowed"
    UNAUTHENTICATED = "unauthenticated"
    TLS = "tls"
    TOO_SLOW = "too_slow"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class ControlRefusal:
    """Nothing is done: why, and what to do instead."""

    reason: RefusalReason
    why: str
    way_out: str = ""
