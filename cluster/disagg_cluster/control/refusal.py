"""Reasons for refusing a request: a code for programs and sentences for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RefusalReason(StrEnum):
    """Why a request is refused; refusals are counted by it.

    Daemon: it is `stopping`. Request: its id was used for another one (`reused_id`), there is no
    such worker (`unknown_worker`), it is `not_understood`, this node launches no workers
    (`no_workers`). Current state: another `change_under_way`; the journal cannot be written, so
    that the next daemon would not know of a move (`unwritten_journal`); the worker is `paused` or
    `drained`, is being stopped or started (`worker_busy`), or is `not_ready`. Role change: the role
    cannot be changed (`fixed_role`), the router cannot change its engines (`fixed_router`), the
    worker is the `last_of_role` of its model, its settings do not fit the role (`does_not_fit`), a
    `stranger` process holds a GPU. Node file: there is none (`no_node_file`), it has problems
    (`wrong_node_file`), it differs from what was shown (`changed_since`). Client: `not_allowed`,
    `unauthenticated` (missing or wrong token), a failed `tls` handshake, `too_slow`, `too_many` at
    a time.
    """

    STOPPING = "stopping"
    REUSED_ID = "reused_id"
    UNKNOWN_WORKER = "unknown_worker"
    NOT_UNDERSTOOD = "not_understood"
    NO_WORKERS = "no_workers"
    CHANGE_UNDER_WAY = "change_under_way"
    UNWRITTEN_JOURNAL = "unwritten_journal"
    PAUSED = "paused"
    DRAINED = "drained"
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
    """A refusal: why nothing is done, and what to do instead."""

    reason: RefusalReason
    why: str
    way_out: str = ""
