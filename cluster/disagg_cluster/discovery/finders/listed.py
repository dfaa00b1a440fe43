"""The engines that a person listed in the node file."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from disagg_cluster.config import ListedEngine
from disagg_cluster.discovery.finders.processes import LOOPBACK
from disagg_cluster.discovery.sightings.types import Endpoint, Finder, Look, Sighting
from disagg_exporter.model import Device

ASK_AGAIN_SECONDS = 60.0


class ListedFinder:
    """Sees the listed engines always; whether they are there, their pages tell.

    Args:
        listed: The node file's list.
        devices: The devices of this node.
        clock: Seam, seconds.
    """

    finder = Finder.LISTED

    def __init__(
        self,
        listed: Sequence[ListedEngine],
        devices: Sequence[Device] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listed = tuple(listed)
        self._devices = tuple(devices)
        self._clock = clock
        self._near: dict[Endpoint, tuple[float, tuple[Endpoint, ...]]] = {}

    def look(self) -> Look:
        """The listed engines."""
        began = self._clock()
        seen = tuple(self._sighting(engine) for engine in self._listed)
        return Look(self.finder, seen, "", self._clock() - began)

    def _sighting(self, engine: ListedEngine) -> Sighting:
        parts = urlsplit(engine.url)
        secure = parts.scheme == "https"
        endpoint = Endpoint(parts.hostname or "", parts.port or 80, tls=secure)
        return Sighting(
            Finder.LISTED,
            kind=engine.engine,
            endpoints=(endpoint,),
            also_at=self._also_at(endpoint),
            gpus=gpus_of(engine, self._devices),
            name=engine.name or "",
            role=engine.role,
            tls=engine.tls,
        )

    def _also_at(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """As `near`, asked once a minute: a resolver that hangs holds up all finders."""
        now_seconds = self._clock()
        until_seconds, places = self._near.get(endpoint, (now_seconds, ()))
        if now_seconds >= until_seconds:
            places = near(endpoint)
            self._near[endpoint] = now_seconds + ASK_AGAIN_SECONDS, places
        return places


def gpus_of(engine: ListedEngine, devices: Sequence[Device]) -> tuple[str, ...] | None:
    """The UUIDs of the devices that a person listed; None where they listed none."""
    found = (d.gpu for item in engine.gpus for d in devices if item in (d.index, d.gpu))
    return tuple(dict.fromkeys(found)) or None


def near(endpoint: Endpoint) -> tuple[Endpoint, ...]:
    """The same port as this machine knows it, if the address is one of its own.

    A process that listens on all addresses is known by the loopback's.
    """
    own = endpoint.host != LOOPBACK and is_own_address(endpoint.host)
    return (Endpoint(LOOPBACK, endpoint.port),) if own else ()


def is_own_address(host: str) -> bool:
    """Whether a host name or address is one of this machine's; a name is looked up."""
    try:
        told = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in told:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
