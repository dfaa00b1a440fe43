"""The API server of the cluster we run in: its address, our credentials, and a GET."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from disagg_exporter.errors import DisaggError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_SECONDS = 10.0
MAX_TOKEN_BYTES = 64 * 1024

# A connection whose peer disappeared silently is detected within half a minute.
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
)


class ApiServerError(DisaggError):
    """The API server cannot be used; says why, and which right is missing if one is."""


class ApiRefusedError(ApiServerError):
    """The server answered with an error; `gone` if it no longer has the requested state."""

    def __init__(self, text: str, *, gone: bool = False) -> None:
        super().__init__(text)
        self.gone = gone


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address of the API server; `token_file` and `ca_file` are None for a plain `http://` address.

    The token is read again for each request: the kubelet replaces it within the hour.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def get(self, path: str, read_seconds: float) -> ApiResponse:
        """Request a path; the caller closes the answer.

        Args:
            path: Path and query.
            read_seconds: How long the server may stay silent, from the request on.

        Raises:
            ApiServerError: It cannot be reached or refuses.
        """
        connection = self._connection()
        with contextlib.ExitStack() as stack, _wrap_errors(self.url):
            stack.callback(connection.close)
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
            connection.sock.settimeout(read_seconds)
            connection.request("GET", path, headers=self._headers())
            response = ApiResponse(connection, self.url)
            stack.pop_all()
            return response

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ApiServerError(f"{self.ca_file}: no certificate: {_reason(error)}") from None
        return http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=context)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "disagg-node"}
        if self.token_file is not None:
            try:
                with self.token_file.open("rb") as file:
                    token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ApiServerError(f"{self.token_file}: no token: {_reason(error)}") from None
            headers["Authorization"] = f"Bearer {token}"
        return headers


class ApiResponse:
    """An answer with status 200 that is being read; every failure is an `ApiServerError`."""

    def __init__(self, connection: http.client.HTTPConnection, url: str) -> None:
        self._connection = connection
        self._url = url
        # Closed with the answer; until then `hang_up` may be called from another thread.
        self._socket = connection.sock
        self._response = connection.getresponse()
        status = self._response.status
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise ApiRefusedError(
                f"{url} answers {status}: the service account needs the verbs list and watch on "
                "pods (docs/kubernetes-engines.md)"
            )
        if status != http.client.OK:
            gone = status == http.client.GONE
            raise ApiRefusedError(f"{url} answers {status}", gone=gone)

    def read(self, most_bytes: int) -> bytes:
        """Return what has arrived, `most_bytes` at most; empty at the end."""
        with _wrap_errors(self._url):
            return self._response.read1(most_bytes)

    def line(self, most_bytes: int) -> bytes:
        """Return the next line with its end, without if cut off or too long; empty at the end."""
        with _wrap_errors(self._url):
            return self._response.readline(most_bytes)

    def hang_up(self) -> None:
        """Interrupt the reading, which another thread may be in."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
        self._connection.close()


def in_cluster(
    environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> ApiServer | None:
    """Return the API server that a pod's environment names; None outside a cluster."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not (port or "443").isdecimal():
        return None
    shown = f"[{host}]" if ":" in host else host
    token, ca = service_account / "token", service_account / "ca.crt"
    return ApiServer(f"https://{shown}:{port or 443}", token, ca)


@contextlib.contextmanager
def _wrap_errors(url: str) -> Iterator[None]:
    """Raise failures of a server as `ApiServerError`."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ApiServerError(f"{url}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'failed'}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
