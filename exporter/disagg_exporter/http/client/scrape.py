"""Fetches an engine's metrics page within a single deadline."""

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
    """Return the body of the page at a URL.

    The deadline covers connecting, sending and every byte of the answer, but not the lookup of a
    host *name*, which has the resolver's own timeout. Redirects are not followed. With an
    `https://` URL, `tls` determines how the server is verified.

    Raises:
        EngineRefused: The status is not 200.
        EngineUnreachable: Nothing listens, no complete answer arrived in time, or it is larger
            than `max_bytes` or cut off.
    """
    request = FetchRequest(url, url, look_up(url), deadline_seconds, tls=tls)
    try:
        with closing(PagePoller(max_bytes, keep=False)) as poller:
            poller.submit(request)
            (result,) = poller.poll()
        if isinstance(result.page, Exception):
            raise result.page
    except OSError as error:  # our own error, such as no descriptor left
        raise EngineUnreachable(f"{url}: {error.strerror}") from None
    return result.page


@lru_cache(maxsize=256)  # pages are fetched every second, at addresses that seldom change
def addresses_at_hand(url: str) -> tuple[Address, ...] | None:
    """Return the addresses of a URL's server; None if its name has to be looked up.

    Raises:
        EngineUnreachable: It is not a page's URL.
    """
    host, port = _server(url)
    try:
        return ((socket.AF_INET, (str(IPv4Address(host)), port)),)
    except ValueError:
        return _found(url, host, port, socket.AI_NUMERICHOST) if ":" in host else None


def look_up(url: str) -> tuple[Address, ...]:
    """Return the addresses of a URL's server; the resolver may take long.

    Raises:
        EngineUnreachable: It is not a page's URL, or the host has no address.
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
    """Return the host and port of a URL."""
    try:
        parts = urlsplit(url)
        sound = bool(parts.scheme in _PORTS and parts.hostname) and parts.port != 0
    except ValueError as error:
        raise EngineUnreachable(f"{url}: not an address ({error})") from None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise EngineUnreachable(f"{url}: not an address of the form http://HOST:PORT/PATH")
    return parts.hostname or "", parts.port or _PORTS[parts.scheme]
