"""Who has to go when a client comes and the connections are all taken.

A place is never refused for being late: slow clients would then keep everybody out for as long as
they like. The newcomer gets one, and the connection that pays is one of the address that holds the
most. So clients of one address compete with each other only, however many they are; and as slow
ones pay before quick ones, who sends a request at once is answered.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be at a time, and how many of them of one address."""

    total: int
    per_address: int


class OpenConnection(Protocol):
    """A connection: whose, and since when it has been doing what it does.

    It waits for a request, or is being answered; each begins anew.
    """

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
    address: str, open_connections: Iterable[OpenConnection], limits: ConnectionLimits
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
