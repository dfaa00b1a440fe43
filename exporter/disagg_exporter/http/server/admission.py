"""Selects the connection to end when a new one arrives at the limit, and counts refusals.

A new connection is never refused: otherwise slow clients could keep all others out for as long as
they like. Instead a connection of the address with the most connections is ended. So clients of one
address compete only with each other, however many they are; and as the slowest are ended first, a
client that sends its request at once is answered.
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
    """Maximum concurrent connections, in total and per address."""

    total: int
    per_address: int


@dataclass(slots=True, eq=False)
class OpenConnection:
    """A connection, its address, and since when it has been in its present state.

    It waits for an answer, or reads one and may send a request; each of these restarts the time.
    """

    number: int
    address: str
    client: DeadlineSocket
    since_seconds: float


class Holder(Protocol):
    """A counted connection: its number, address, and since when it is in its present state."""

    number: int
    address: str
    since_seconds: float


def address_of(peer: Any) -> str:
    """Return the address to count a client's connections by, from the peer that `accept` returns.

    One host may have 2⁶⁴ IPv6 addresses, so those of a /64 count as one.
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
    """Return the number of the connection to end for a new one; None if there is room.

    It is the one longest in its present state, of the address with the most connections (of the
    new one's own address if that has reached its limit).
    """
    candidates = tuple(open_connections)
    held = Counter(connection.address for connection in candidates)
    if held[address] >= limits.per_address:
        candidates = tuple(one for one in candidates if one.address == address)
    elif len(candidates) >= limits.total:
        most = max(held.values())
        # An address that holds the most, even if tied, makes room for itself.
        payers = {address} if held[address] == most else {a for a in held if held[a] == most}
        candidates = tuple(one for one in candidates if one.address in payers)
    else:
        return None
    return min(candidates, key=lambda one: (one.since_seconds, one.number)).number


RESERVED_DESCRIPTORS = 16


def is_scarce(descriptor: int, soft_limit: int | None = None) -> bool:
    """Return whether a client's descriptor is one of the last, which are reserved.

    The kernel assigns the lowest free number, so a high one means that those below are taken.

    Args:
        descriptor: The client's descriptor.
        soft_limit: One more than the largest number; if None, the kernel's present limit.
    """
    if soft_limit is None:
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return False
    return descriptor >= soft_limit - RESERVED_DESCRIPTORS


_log = logging.getLogger(__name__)
_WARN_EVERY_SECONDS = 60.0
_MAX_CHARACTERS = 200
_TOO_LARGE = (HTTPStatus.REQUEST_URI_TOO_LONG, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)


class Refusal(StrEnum):
    """Why a connection was ended without an answer, or answered without the page."""

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
    """Return why the head of a request was refused."""
    return Refusal.TOO_LARGE if error.status in _TOO_LARGE else Refusal.MALFORMED


_MESSAGES = {
    Refusal.DISPLACED: "too many connections: the slowest of the busiest address was closed",
    Refusal.NO_THREAD: "no thread is free to serve it",
    Refusal.TIMEOUT: "it was too slow",
    Refusal.TOO_LARGE: "its request was too large",
    Refusal.MALFORMED: "its request was malformed",
    Refusal.TLS: "the TLS handshake failed",
    Refusal.UNAUTHORIZED: "it sent no name and password, or wrong ones",
    Refusal.RATE_LIMITED: "more requests arrive than `rate_limit` allows",
    Refusal.TOO_MANY_GUESSES: "too many passwords are waiting to be checked",
}
_BY_STATUS = {
    HTTPStatus.UNAUTHORIZED: Refusal.UNAUTHORIZED,
    HTTPStatus.TOO_MANY_REQUESTS: Refusal.RATE_LIMITED,
    HTTPStatus.SERVICE_UNAVAILABLE: Refusal.TOO_MANY_GUESSES,
}


def refusal_by_status(status: HTTPStatus) -> Refusal | None:
    """Return why a request was refused, by the status of the answer; None if it was not."""
    return _BY_STATUS.get(status)


class RefusalCounts:
    """Thread-safe counts by reason since the start. Each reason is logged once a minute at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Refusal, 0)
        self._said_seconds = dict.fromkeys(Refusal, float("-inf"))

    def add(self, reason: Refusal, address: str, why: str = "") -> None:
        """Count a refusal of a client at `address`, and log `why`, never what the client sent."""
        now_seconds = time.monotonic()
        with self._lock:
            self._counts[reason] += 1
            silent = now_seconds - self._said_seconds[reason] < _WARN_EVERY_SECONDS
            if not silent:
                self._said_seconds[reason] = now_seconds
        if not silent:
            # The reason may contain text of the peer's choice, such as a certificate's names.
            text = "".join(char if char.isprintable() else "?" for char in why)[:_MAX_CHARACTERS]
            _log.warning("metrics page: %s is refused: %s", address, text or _MESSAGES[reason])

    def read(self) -> dict[str, int]:
        """Return every reason and its count."""
        with self._lock:
            return {reason.value: count for reason, count in self._counts.items()}
