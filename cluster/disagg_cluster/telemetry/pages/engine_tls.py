"""How to speak TLS with each engine: whom to trust, kept up as certificates change."""

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
from disagg_exporter.http.tls_words import TlsError, TlsFault, Trust

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

MAX_CERTIFICATE_BYTES = 256 * 1024
MAX_ENGINES = 256
KEPT_PINS = 4
"""A process need not take up a certificate as soon as its file is written, or ever: those that its
file has had before still count as its own."""

_Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class EngineTlsServer:
    """An engine that serves TLS, as far as it is known.

    `certificate_file` is where its process was told to find its certificate, empty if nobody knows.
    `pid` and `start_ticks` are that process; None where it is not seen, or not on this node.
    """

    settings: EngineTls = UNSPECIFIED_TLS
    certificate_file: str = ""
    pid: int | None = None
    start_ticks: int | None = None


@dataclass(slots=True)
class _KnownServer:
    """What was found out about one engine, and the client that was made of it."""

    server: EngineTlsServer
    pins: tuple[bytes, ...] = ()
    unreadable: str = ""


class EngineTlsClients:
    """Makes the client's end of TLS for each engine; to be asked on any thread, one an engine.

    Args:
        server_of: What is known of an engine that serves TLS.
    """

    def __init__(self, server_of: Callable[[str], EngineTlsServer]) -> None:
        self._server_of = server_of
        self._known: dict[str, _KnownServer] = {}

    def client(self, engine: str, url: str) -> ClientTls:
        """Return how to speak TLS with an engine; the same as long as nothing has changed.

        Reads files: of an engine's own file system, which may let us wait.

        Raises:
            TlsError: Nobody is trusted to be this engine, or a file cannot be used.
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
            trust.verified  # noqa: B018 - raises where nobody is trusted
        except TlsError as error:
            if error.fault is TlsFault.NO_TRUST and known.unreadable:
                raise TlsError(TlsFault.NO_TRUST, known.unreadable) from None
            raise
        return client_for(trust)

    def _read_pin(self, known: _KnownServer) -> None:
        """Take what stands now in the file that the engine's process has its certificate from."""
        server = known.server
        if not server.certificate_file or server.pid is None:
            return
        try:
            pem = read_file_of(server.pid, server.certificate_file, MAX_CERTIFICATE_BYTES)
        except (OSError, ValueError) as error:
            known.unreadable = f"its certificate file: {getattr(error, 'strerror', None) or error}"
            return
        # A pid is given out again: what was read may be another process's.
        if server.start_ticks not in (None, start_ticks(server.pid)):
            return
        known.unreadable = ""
        if known.pins[:1] != (pem,):
            older = tuple(pin for pin in known.pins if pin != pem)
            # In the middle of being written it is none, and the next scrape finds it whole.
            if b"-----END CERTIFICATE-----" in pem:
                known.pins = (pem, *older)[:KEPT_PINS]


def client_for(trust: Trust) -> ClientTls:
    """A client's end of TLS; the same as long as the files that the trust names are the same.

    Raises:
        TlsError: Nobody is trusted, or a file cannot be used.
    """
    return _client_of(trust, _signature(trust))


@lru_cache(maxsize=64)  # each worker is probed every second
def _client_of(trust: Trust, _files: _Signature) -> ClientTls:
    # OpenSSL is loaded with the first one: most nodes have none that needs it.
    from disagg_exporter.http.client.tls_client import ClientTls

    return ClientTls(trust)


def _signature(trust: Trust) -> _Signature:
    """What changes with the files that a trust names."""
    files = (trust.ca_file, trust.cert_file, trust.key_file)
    return tuple(None if file is None else _state(file) for file in files)


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - as for all that is asked each second
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
