"""Whether a worker serves: its server answers, is its own, and serves its own model.

An answer alone proves nothing: another server on the port says 200, too. So the socket that listens
must be held by the worker's session, and the models page must name its model.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from dataclasses import dataclass, field
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING

from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.host.tcp_listeners import Owner, listening_inodes, owner_of, session_members
from disagg_cluster.lifecycle.state import Health
from disagg_cluster.telemetry.pages.engine_tls import client_for
from disagg_exporter.http.client.exchange import FetchRequest
from disagg_exporter.http.client.page_poller import PagePoller
from disagg_exporter.http.client.unreachable import EngineRefused, EngineUnreachable
from disagg_exporter.http.tls_errors import TlsError, Trust

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

_MAX_BYTES = 256 * 1024

# How much is shown of what a server says it serves: its page may be another program's.
_SHOWN_MODELS, _SHOWN_CHARACTERS = 5, 100


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where a worker should answer, and as what. `host` is an IP address.

    With an empty `served_model_name` no model is checked. `api_key` is for the models page.
    `health_path` answers 200 while the worker itself is well, within `timeout_seconds` if the
    worker has a deadline of its own. `tls` is how to speak TLS with a server that requires it: the
    kernel says whose socket it is, so a certificate that cannot be verified ends no worker.
    """

    port: int
    served_model_name: str
    host: str = "127.0.0.1"
    api_key: str = field(default="", repr=False)
    health_path: str = "/health"
    timeout_seconds: float | None = None
    tls: Trust | None = None

    @property
    def authority(self) -> str:
        """Host and port as in a URL: an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """The response on one path; status 0 if there was none, and then `why`.

    `was_asked` is False if the request could not be put to a server that may be well: for lack of
    TLS that both speak, or of a file of ours.
    """

    status: int = 0
    body: bytes = b""
    why: str = ""
    was_asked: bool = True


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What one probe observed. `models` is None if the same sockets proved them before."""

    target: ProbeTarget
    health: ProbeResponse
    owner: Owner
    inodes: frozenset[int]
    models: ProbeResponse | None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The verdict of one probe, and why in words.

    `proven` are a healthy worker's listening sockets that are surely its own: while the port has
    exactly these, they need not be looked up again.
    """

    health: Health
    why: str
    proven: frozenset[int] = frozenset()


def probe(
    target: ProbeTarget, session: int, deadline_seconds: float, proven: frozenset[int] = frozenset()
) -> ProbeResult:
    """Probe a worker once; blocks for `deadline_seconds` at most.

    Args:
        target: Where it should answer.
        session: The pid of its leader.
        deadline_seconds: For all requests together.
        proven: What the last healthy probe of this process proved.
    """
    try:
        return _probe(target, session, time.monotonic() + deadline_seconds, proven)
    except OSError as error:
        return ProbeResult(Health.UNDECIDED, f"the probe itself failed: {error}")


def _probe(target: ProbeTarget, session: int, until: float, proven: frozenset[int]) -> ProbeResult:
    health = get(target, target.health_path, until)
    inodes = listening_inodes(target.host, target.port)
    if inodes and inodes == proven:
        return judge(ProbeFacts(target, health, Owner.OURS, inodes, None))
    owner = owner_of(inodes, session_members(session))
    asks = health.status == 200 and owner is not Owner.OTHER and target.served_model_name != ""
    models = get(target, "/v1/models", until) if asks else ProbeResponse(why="not asked")
    return judge(ProbeFacts(target, health, owner, inodes, models))


def judge(facts: ProbeFacts) -> ProbeResult:
    """Return the verdict on what a probe observed."""
    if facts.owner is Owner.OTHER:
        return ProbeResult(Health.FOREIGN, f"another process listens on port {facts.target.port}")
    if facts.health.status == 0:
        health = Health.NO_ANSWER if facts.health.was_asked else Health.UNDECIDED
        return ProbeResult(health, f"{facts.target.health_path}: {facts.health.why}")
    if facts.health.status != 200:
        why = f"{facts.target.health_path} answers {facts.health.status}"
        return ProbeResult(Health.UNHEALTHY, why)
    ours = facts.owner is Owner.OURS
    if facts.models is None:
        return ProbeResult(Health.HEALTHY, "healthy", facts.inodes)
    wrong = _model_fault(facts.target, facts.models, ours)
    if wrong is not None:
        return wrong
    if ours:
        return ProbeResult(Health.HEALTHY, "healthy", facts.inodes)
    return ProbeResult(
        Health.HEALTHY,
        "healthy by its models page alone: the owner of its socket cannot be seen",
    )


def get(target: ProbeTarget, path: str, until: float) -> ProbeResponse:
    """GET one path; `until` is the `time.monotonic` instant by which all must have arrived.

    http.client restarts its timeout for every piece, so a server that sends a byte a second would
    hold the probe for ever. HTTP/1.0 keeps the answer plain: no chunks, closed at its end.

    Raises:
        OSError: The fault is on our side, such as no descriptor or no port left.
    """
    if target.tls is not None:
        return _get_by_tls(target, path, until)
    key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
    request = f"GET {path} HTTP/1.0\r\nHost: {target.authority}\r\n{key}\r\n"
    try:
        address = (target.host, target.port)
        with socket.create_connection(address, timeout=_left(until)) as connection:
            connection.sendall(request.encode("latin-1"))
            received = _receive(connection, until)
    except TimeoutError:
        return ProbeResponse(why="no answer in time")
    except ConnectionError as error:
        return ProbeResponse(why=str(error))
    head, _, body = received.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    is_http = len(words) >= 2 and words[0].startswith(b"HTTP/")
    if not is_http or len(words[1]) != 3 or not words[1].isdigit():
        return ProbeResponse(why="the answer is not HTTP")
    return ProbeResponse(int(words[1]), body)


def health_request(
    key: str, target: ProbeTarget, path: str, seconds: float, tls: ClientTls | None = None
) -> FetchRequest:
    """Return a GET request for one path of a worker's server."""
    family = AF_INET6 if ":" in target.host else AF_INET
    return FetchRequest(
        key,
        f"http{'s' if target.tls else ''}://{target.authority}{path}",
        ((family, (target.host, target.port)),),
        seconds,
        bearer=target.api_key,
        tls=tls,
    )


def _get_by_tls(target: ProbeTarget, path: str, until: float) -> ProbeResponse:
    assert target.tls is not None
    try:
        ask = health_request("", target, path, _left(until), client_for(target.tls))
        with closing(PagePoller(_MAX_BYTES, keep=False)) as poller:
            poller.submit(ask)
            (result,) = poller.poll()
    except TimeoutError:
        return ProbeResponse(why="no answer in time")
    except TlsError as error:
        return ProbeResponse(why=str(error), was_asked=False)
    if isinstance(result.page, EngineRefused):
        return ProbeResponse(result.page.status)
    if isinstance(result.page, EngineUnreachable):
        # A server that rejects our TLS is there and works; one that hangs does not.
        return ProbeResponse(why=str(result.page), was_asked=not result.page.speaks)
    if isinstance(result.page, Exception):
        raise result.page
    return ProbeResponse(200, result.page)


def _receive(connection: socket.socket, until: float) -> bytes:
    received = b""
    while len(received) < _MAX_BYTES:
        connection.settimeout(_left(until))
        piece = connection.recv(_MAX_BYTES - len(received))
        if not piece:
            break
        received += piece
    return received


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _model_fault(target: ProbeTarget, models: ProbeResponse, ours: bool) -> ProbeResult | None:
    """Return what is wrong with the models that the server lists, if anything."""
    wanted = target.served_model_name
    if not wanted:
        unseen = "whose server answers cannot be seen, and no model is known to ask for"
        return None if ours else ProbeResult(Health.UNHEALTHY, unseen)
    if models.status in (401, 403) and ours:
        # The socket is its own; we merely lack the key of its models page.
        return None
    if models.status == 0:
        return ProbeResult(Health.NO_ANSWER, f"/v1/models: {models.why}")
    if models.status != 200:
        return ProbeResult(Health.UNHEALTHY, f"/v1/models answers {models.status}")
    served = _served(models.body)
    if wanted in served:
        return None
    others = ", ".join(_printable(name) for name in served[:_SHOWN_MODELS])
    why = f"the server on port {target.port} serves {others or 'no model'}, not {wanted}"
    return ProbeResult(Health.UNHEALTHY if ours else Health.FOREIGN, why)


def _served(body: bytes) -> tuple[str, ...]:
    """Return the names on a models page; none if it is not one."""
    try:
        page = parse_foreign(body)
    except ValueError:
        return ()
    models = page.get("data") if isinstance(page, dict) else None
    entries = models if isinstance(models, list) else []
    names = (entry.get("id") for entry in entries if isinstance(entry, dict))
    return tuple(name for name in names if isinstance(name, str))


def _printable(name: str) -> str:
    """Return a name fit for a log: one line, of bounded length, and surely text."""
    return ascii(name[:_SHOWN_CHARACTERS])[1:-1]
