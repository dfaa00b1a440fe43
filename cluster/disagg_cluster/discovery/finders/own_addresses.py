"""Which declared addresses are this machine's own."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from disagg_cluster.discovery.finders.processes import LOOPBACK
from disagg_cluster.discovery.observations.types import Endpoint

ASK_AGAIN_SECONDS = 60.0


class OwnAddresses:
    """Resolves each host once a minute: a resolver that hangs delays all finders.

    Args:
        is_own: Returns whether a host name or address is this machine's.
        clock: Clock in seconds; replaceable for tests.
    """

    def __init__(
        self,
        is_own: Callable[[str], bool] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_own = is_own or is_own_address
        self._clock = clock
        self._known: dict[str, tuple[float, bool]] = {}

    def near(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """Return the same port under this machine's loopback, if the address is one of its own.

        A process that listens on all addresses is known by the loopback address.
        """
        own = endpoint.host != LOOPBACK and self._is_own_now(endpoint.host)
        return (Endpoint(LOOPBACK, endpoint.port),) if own else ()

    def _is_own_now(self, host: str) -> bool:
        now_seconds = self._clock()
        if host not in self._known or now_seconds >= self._known[host][0]:
            # Hosts that are no longer declared are forgotten.
            self._known = {each: at for each, at in self._known.items() if now_seconds < at[0]}
            self._known[host] = now_seconds + ASK_AGAIN_SECONDS, self._is_own(host)
        return self._known[host][1]


def is_own_address(host: str) -> bool:
    """Return whether a host name or address is one of this machine's; a name is resolved."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
