"""Which connection ends for a new one when all are taken, and how many were turned away.

A place is never refused for being late: slow clients would then keep everybody out for as long as
they like. The newcomer gets one, and the connection that pays is one of the address that holds the
most. So clients of one address compete with each other only, however many they are; and as slow
ones pay before quick ones, who sends a request at once is answered.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from disagg_exporter.http.server.request import HeadError

if TYPE_CHECKING:
    from disagg_exporter.http.deadline_socket import DeadlineSocket


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be at a time, and how many of them of one address."""

    total: int
    per_address: int


@dataclass(slots=True, eq=False)
class OpenConnection:
    """A connection: whose, and since when it has been doing what it does.

    It waits for an answer, or reads one and may ask again; each begins anew.
    """

    number: int
    address: str
    client: DeadlineSocket
    since_seconds: float


class Holder(Protocol):
    """Who holds a place: which one, whose, and since when it does what it does."""

    number: int
    address: str
    since_seconds: float


def address_of(peer: Any) -> str:
    """The address by which a client's connections are counted, of what `accept` says of it.

    One host has 2⁶⁴ addresses of IPv6: those of one /64 count as one.
    """
    host = str(peer[0])
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


def displaced_by(
    address: str, open_connections: Iterable[Holder], limits: ConnectionLimits
) -> int | None:
    """The number of the connection that ends for a newcomer's, or None if there is room.

    Of the address that holds the most (of the newcomer's own where that has its share) it is the
    one that has been at what it does for longest.
    """
    candidates = tuple(open_connections)
    held = Counter(connection.address for connection in candidates)
    if held[address] >= limits.per_address:
        candidates = tuple(one for one in candidates if one.address == address)
    elif len(candidates) >= limits.total:
        most = max(held.values())
        # Who has no less than all others makes room for itself.
        payers = {address} if held[address] == most else {a for a in held if held[a] == most}
        candidates = tuple(one for one in candidates if one.address in payers)
    else:
        return None
    return min(candidates, key=lambda one: (one.since_seconds, one.number)).number


RESERVED_DESCRIPTORS = 16


def is_scarce(descriptor: int, soft_limit: int | None = None) -> bool:
    """Whether so few descriptors are left that a client should not have got this one.

    The kernel gives the lowest number that is free, so a high one says that those below are taken.

    Args:
        descriptor: What a client was given.
        soft_limit: One more than the largest number; as the kernel says now if None.
    """
    if soft_limit is None:
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return False
    return descriptor >= soft_limit - RESERVED_DESCRIPTORS


_log = logging.getLogger(__name__)
_WARN_EVERY_SECONDS = 60.0
_MOST_WORDS = 200
_TOO_LARGE = (HTTPStatus.REQUEST_URI_TOO_LONG, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)


class Refusal(StrEnum):
    """Why we ended a connection before it had its answer, or why that was not the page."""

    DISPLACED = "displaced"
    NO_THREAD = "no_thread"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    TLS = "tls"
    UNAUTHORIZED = "unauthorized"
    RATE_LIMITED = "rate_limited"
    TOO_MANY_GUESSES = "too_many_guesses"


def refusal_of(error: HeadError) -> Refusal:
    """Why the head of a request was refused."""
    return Refusal.TOO_LARGE if error.status in _TOO_LARGE else Refusal.MALFORMED


_WORDS = {
    Refusal.DISPLACED: "of too many connections the slowest of those with the most end",
    Refusal.NO_THREAD: "no thread is left for it",
    Refusal.TIMEOUT: "it was too slow",
    Refusal.TOO_LARGE: "its request was too large",
    Refusal.MALFORMED: "its request was none",
    Refusal.TLS: "the TLS handshake failed",
    Refusal.UNAUTHORIZED: "it has shown no name and password, or wrong ones",
    Refusal.RATE_LIMITED: "requests come more often than rate_limit allows",
    Refusal.TOO_MANY_GUESSES: "too many passwords to check",
}
_BY_STATUS = {
    HTTPStatus.UNAUTHORIZED: Refusal.UNAUTHORIZED,
    HTTPStatus.TOO_MANY_REQUESTS: Refusal.RATE_LIMITED,
    HTTPStatus.SERVICE_UNAVAILABLE: Refusal.TOO_MANY_GUESSES,
}


def refusal_by_status(status: HTTPStatus) -> Refusal | None:
    """Why who asked is not shown what it asked for, by the status of the answer."""
    return _BY_STATUS.get(status)


class RefusalCounts:
    """Counts of each reason since the start; from any thread. Each is said once a minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Refusal, 0)
        self._said_seconds = dict.fromkeys(Refusal, float("-inf"))

    def add(self, reason: Refusal, address: str, why: str = "") -> None:
        """Count one of a client at `address`, and say `why`; nothing of what it sent is said."""
        now_seconds = time.monotonic()
        with self._lock:
            self._counts[reason] += 1
            silent = now_seconds - self._said_seconds[reason] < _WARN_EVERY_SECONDS
            if not silent:
                self._said_seconds[reason] = now_seconds
        if not silent:
            # A certificate's names, say: whoever has it has chosen them.
            told = "".join(char if char.isprintable() else "?" for char in why)[:_MOST_WORDS]
            _log.warning("metrics page: %s is refused: %s", address, told or _WORDS[reason])

    def read(self) -> dict[str, int]:
        """Every reason and its count."""
        with self._lock:
            return {reason.value: count for reason, count in self._counts.items()}
