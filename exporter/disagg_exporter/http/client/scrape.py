"""Fetches an engine's metrics page, within a deadline that covers everything."""

from __future__ import annotations

import socket
from contextlib import closing
from functools import lru_cache
from ipaddress import IPv4Address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from disagg_exporter.http.client.exchange import Address, FetchRequest
from disagg_exporter.http.client.page_poller import PagePoller
from disagg_exporter.http.client.unreachable import EngineUnreachable

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

MAX_PAGE_BYTES = 8 * 1024 * 1024

_PORTS = {"http": 80, "https": 443}


def fetch(
    url: str,
    deadline_seconds: float,
    max_bytes: int = MAX_PAGE_BYTES,
    tls: ClientTls | None = None,
) -> bytes:
    """Return the body of the page at an address.

    The deadline covers connecting, sending and every byte of the answer; only the look-up of a
    host *name* is left to the resolver's own patience. Redirects are not followed. With an
    `https://` address `tls` says how its server is known.

    Raises:
        EngineRefused: The answer is no 200.
        EngineUnreachable: Nothing listens, no whole answer came in time, or it is larger than
            `max_bytes`, or cut off.
    """
    request = FetchRequest(url, url, look_up(url), deadline_seconds, tls=tls)
    try:
        with closing(PagePoller(max_bytes, keep=False)) as poller:
            poller.submit(request)
            (result,) = poller.poll()
        if isinstance(result.page, Exception):
            raise result.page
    except OSError as error:  # ours, such as no descriptor left
        raise EngineUnreachable(f"{url}: {error.strerror}") from None
    return result.page


@lru_cache(maxsize=256)  # each page is asked for every second, and has one address for hours
def addresses_at_hand(url: str) -> tuple[Address, ...] | None:
    """Where the server of an address is; None if its name has to be looked up.

    Raises:
        EngineUnreachable: It is no address of a page.
    """
    host, port = _server(url)
    try:
        return ((socket.AF_INET, (str(IPv4Address(host)), port)),)
    except ValueError:
        return _found(url, host, port, socket.AI_NUMERICHOST) if ":" in host else None


def look_up(url: str) -> tuple[Address, ...]:
    """Where the server of an address is; asks the resolver, which may take its time.

    Raises:
        EngineUnreachable: It is no address of a page, or of no host.
    """
    return _found(url, *_server(url))


def _found(url: str, host: str, port: int, flags: int = 0) -> tuple[Address, ...]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:
        raise EngineUnreachable(f"{url}: {host!a} is not a host name") from None
    except OSError as error:
        raise EngineUnreachable(f"{url}: {error.strerror or type(error).__name__}") from None
    return tuple((family, address) for family, _, _, _, address in found)


def _server(url: str) -> tuple[str, int]:
    """The host and the port of an address."""
    try:
        parts = urlsplit(url)
        sound = bool(parts.scheme in _PORTS and parts.hostname) and parts.port != 0
    except ValueError as error:
        raise EngineUnreachable(f"{url}: not an address ({error})") from None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise EngineUnreachable(f"{url}: not an address of the form http://HOST:PORT/PATH")
    return parts.hostname or "", parts.port or _PORTS[parts.scheme]
