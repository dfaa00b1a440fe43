"""How to speak TLS with each engine: whom to trust, kept current as certificates change."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from disagg_cluster.config.tls import UNSPECIFIED_TLS, EngineTls
from disagg_cluster.host.files.named_paths import read_file_of
from disagg_cluster.host.processes.procfs import start_ticks
from disagg_exporter.http.tls_errors import TlsError, TlsFault, Trust

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

MAX_CERTIFICATE_BYTES = 256 * 1024
MAX_ENGINES = 256
KEPT_PINS = 4
"""How many certificates of an engine's file, earlier ones included, count as its own: a process
need not load a new certificate as soon as its file is written, or ever."""

_Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class EngineTlsServer:
    """What is known of an engine that serves TLS.

    `certificate_file` is where its process is configured to find its certificate, empty if unknown.
    `pid` and `start_ticks` identify that process; None if it is not visible, or not on this node.
    """

    settings: EngineTls = UNSPECIFIED_TLS
    certificate_file: str = ""
    pid: int | None = None
    start_ticks: int | None = None


@dataclass(slots=True)
class _KnownServer:
    """The findings about one engine: its certificates, or why its file is unreadable."""

    server: EngineTlsServer
    pins: tuple[bytes, ...] = ()
    unreadable: str = ""


class EngineTlsClients:
    """Makes the client's end of TLS for each engine; callable on any thread, one per engine.

    Args:
        server_of: What is known of an engine that serves TLS.
    """

    def __init__(self, server_of: Callable[[str], EngineTlsServer]) -> None:
        self._server_of = server_of
        self._known: dict[str, _KnownServer] = {}

    def client(self, engine: str, url: str) -> ClientTls:
        """Return how to speak TLS with an engine; the same as long as nothing has changed.

        Reads files, also of an engine's own file system, which may block.

        Raises:
            TlsError: No certificate or CA is known for it, or a file cannot be used.
        """
        server = self._server_of(engine)
        known = self._known.get(engine)
        if known is None or known.server != server:
            while len(self._known) >= MAX_ENGINES:
                self._known.pop(next(iter(self._known)), None)
            known = self._known[engine] = _KnownServer(server)
        self._read_pin(known)
        try:
            trust = server.settings.trust(known.pins, urlsplit(url).hostname or "")
            trust.verified  # noqa: B018 - raises where nothing is trusted
        except TlsError as error:
            if error.fault is TlsFault.NO_TRUST and known.unreadable:
                raise TlsError(TlsFault.NO_TRUST, known.unreadable) from None
            raise
        return client_for(trust)

    def _read_pin(self, known: _KnownServer) -> None:
        """Add the certificate now in the file from which the engine's process has its own."""
        server = known.server
        if not server.certificate_file or server.pid is None:
            return
        try:
            pem = read_file_of(server.pid, server.certificate_file, MAX_CERTIFICATE_BYTES)
        except (OSError, ValueError) as error:
            known.unreadable = f"its certificate file: {getattr(error, 'strerror', None) or error}"
            return
        # Pids are reused: what was read may be another process's.
        if server.start_ticks not in (None, start_ticks(server.pid)):
            return
        known.unreadable = ""
        if known.pins[:1] != (pem,):
            older = tuple(pin for pin in known.pins if pin != pem)
            # A half-written file holds none; the next scrape finds it whole.
            if b"-----END CERTIFICATE-----" in pem:
                known.pins = (pem, *older)[:KEPT_PINS]


def client_for(trust: Trust) -> ClientTls:
    """Return a client's end of TLS; the same as long as the files of the trust are the same.

    Raises:
        TlsError: Nothing is trusted, or a file cannot be used.
    """
    return _client_of(trust, _signature(trust))


@lru_cache(maxsize=64)  # each worker is probed every second
def _client_of(trust: Trust, _files: _Signature) -> ClientTls:
    # The first client loads OpenSSL, which most nodes never need.
    from disagg_exporter.http.client.tls_client import ClientTls

    return ClientTls(trust)


def _signature(trust: Trust) -> _Signature:
    """Return what changes with the files that a trust names."""
    files = (trust.ca_file, trust.cert_file, trust.key_file)
    return tuple(None if file is None else _state(file) for file in files)


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - as for all that is asked each second
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
