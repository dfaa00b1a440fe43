"""Checks of connections: port clashes, a control port open to everybody, wrong TLS settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.config import EngineTls
from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.launch.command import ranks_of
from disagg_cluster.nodefile.draft import Draft, Host

LAST_PORT = 65535

_GRPC = ("control", "grpc")
_PACKAGES = ("grpc", "grpc_health", "google.protobuf")
_TLS_FILES = ("ca_file", "cert_file", "key_file")


@dataclass(frozen=True, slots=True)
class _Claim:
    """The ports that a part of the node listens on."""

    path: YamlPath
    owner: str
    ports: range


class _PortTable:
    """The owner of each port: the first that claims it."""

    def __init__(self) -> None:
        self._taken = bytearray(LAST_PORT + 1)
        self._owners: list[_Claim | None] = [None] * (LAST_PORT + 1)

    def take(self, claim: _Claim) -> tuple[int, _Claim] | None:
        """Give a claim its free ports; return the first that is already taken, with its owner."""
        first, end = claim.ports[0], min(claim.ports[-1], LAST_PORT) + 1
        clash = self._taken.find(1, first, end)
        owner = self._owners[clash] if clash >= 0 else None
        while (start := self._taken.find(0, first, end)) >= 0:
            first = self._taken.find(1, start, end)
            first = end if first < 0 else first
            self._taken[start:first] = b"\1" * (first - start)
            self._owners[start:first] = [claim] * (first - start)
        return None if owner is None else (clash, owner)


def check_ports(draft: Draft) -> Iterator[Finding]:
    """Yield every port that two parts of the node would listen on."""
    ledger = _PortTable()
    for claim in _claims(draft):
        if claim.ports[-1] > LAST_PORT:
            message = f"ports {_span(claim.ports)} are needed; the last is {LAST_PORT}"
            yield Finding(claim.path, message)
        if (clash := ledger.take(claim)) is not None:
            port, other = clash
            hint = "each needs ports of its own"
            if max(len(claim.ports), len(other.ports)) > 1:
                hint = f"wanted here: {_span(claim.ports)}, there: {_span(other.ports)}"
            yield Finding(claim.path, f"port {port} already belongs to {other.owner}", hint)


def _claims(draft: Draft) -> Iterator[_Claim]:
    metrics = draft.config.listen.metrics_address.port
    if metrics and draft.sure("listen", "metrics"):
        yield _Claim(("listen", "metrics"), "the metrics page", range(metrics, metrics + 1))
    grpc = draft.config.control.grpc
    at = ("control", "grpc", "listen")
    if grpc is not None and grpc.address is not None and draft.sure(*at):
        port = grpc.address.port
        if port:
            yield _Claim(at, "the port of control over gRPC", range(port, port + 1))
    for position, worker in draft.workers:
        place, label = ("workers", position), draft.label(position)
        if draft.sure(*place, "port"):
            yield _Claim((*place, "port"), label, range(worker.port, worker.port + 1))
        ports = worker.side_channel_ports
        keys = ["kv_transfer", "engine", *(["role"] if worker.uses_bootstrap else [])]
        if ports and all(draft.sure(*place, key) for key in keys):
            size_known = draft.sure(*place, "gpus") and draft.sure(*place, "tensor_parallel_size")
            path = (*place, "kv_transfer", "side_channel_port")
            # vLLM adds the number of the data-parallel rank.
            most = max(len(ports), 0 if worker.uses_bootstrap else ranks_of(worker))
            size_known = size_known and draft.sure(*place, "args")
            wanted = range(ports[0], ports[0] + (most if size_known else 1))
            yield _Claim(path, f"the KV side channel of {label}", wanted)
    router = draft.config.router
    if router is not None:
        if draft.sure("router", "port"):
            yield _Claim(("router", "port"), "the router", range(router.port, router.port + 1))
        if draft.sure("router", "metrics_port"):
            page = range(router.metrics_port, router.metrics_port + 1)
            yield _Claim(("router", "metrics_port"), "the router's metrics page", page)


def _span(ports: range) -> str:
    return f"{ports[0]}" if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def check_control(draft: Draft, host: Host) -> Iterator[Finding]:
    """Yield problems of `control:`, such as a port that would let everybody control the workers."""
    grpc = draft.config.control.grpc
    if grpc is None or not draft.sure(*_GRPC):
        return
    if not all(map(host.installed, _PACKAGES)):
        hint = "pip install 'disagg-node[grpc]', or leave the section out"
        yield Finding(_GRPC, "gRPC is not installed", hint)
    named: list[tuple[YamlPath, str | None]] = [
        ((*_GRPC, "web_config"), grpc.web_config),
        ((*_GRPC, "token_file"), grpc.token_file),
    ]
    if grpc.listen is not None and grpc.web_config is None and draft.sure(*_GRPC, "web_config"):
        hint = (
            "add web_config: a file with tls_server_config, and in that "
            "client_auth_type: RequireAndVerifyClientCert, or here a token_file"
        )
        yield Finding(
            (*_GRPC, "listen"), "any client that reaches this port could control the workers", hint
        )
    for path, file in named:
        if file is None:
            continue
        if grpc.listen is None and draft.sure(*_GRPC, "listen"):
            hint = "add listen, an address such as 0.0.0.0:9849, or leave it out"
            yield Finding(path, "only means something for a port", hint)
        elif not host.exists(file):
            yield Finding(path, f"{file} is not there")


def check_tls(draft: Draft, host: Host) -> Iterator[Finding]:
    """Yield inconsistencies between the values of each `tls:`."""
    for path, tls in _tls_sections(draft):
        if draft.sure(*path):
            yield from _tls(path, tls, host)
    yield from _tls_in_plain(draft)
    for position, worker in draft.workers:
        path = ("workers", position, "tls")
        if not draft.sure("workers", position, "args"):
            continue
        if worker.certificate_file == "":
            args = ("workers", position, "args")
            yield Finding(args, "--ssl-certfile without a file", "give it the path of a PEM file")
        elif "tls" in worker.model_fields_set and worker.certificate_file is None:
            hint = "add --ssl-certfile to its args, or leave tls out"
            yield Finding(path, "only means something where the engine serves TLS", hint)


def _tls_in_plain(draft: Draft) -> Iterator[Finding]:
    """Yield endpoints in plain HTTP that have TLS settings."""
    attach = draft.config.attach
    for number, engine in enumerate(attach.endpoints if attach else ()):
        path = ("attach", "endpoints", number)
        if engine.tls is not None and engine.url.startswith("http:") and draft.sure(*path):
            message, hint = "only means something for an https:// address", "write https://"
            yield Finding((*path, "tls"), message, hint)


def _tls_sections(draft: Draft) -> Iterator[tuple[YamlPath, EngineTls]]:
    attach = draft.config.attach
    if attach is not None:
        yield ("attach", "tls"), attach.tls
        for number, engine in enumerate(attach.endpoints):
            if engine.tls is not None:
                yield ("attach", "endpoints", number, "tls"), engine.tls
    for position, worker in draft.workers:
        yield ("workers", position, "tls"), worker.tls


def _tls(path: YamlPath, tls: EngineTls, host: Host) -> Iterator[Finding]:
    if tls.key_file is not None and tls.cert_file is None:
        hint = "add cert_file, the certificate that it is the key of"
        yield Finding((*path, "key_file"), "a key without its certificate", hint)
    if tls.insecure and tls.ca_file is not None:
        hint = "leave one of them out"
        yield Finding((*path, "insecure"), "says the opposite of ca_file", hint)
    for key in _TLS_FILES:
        file: str | None = getattr(tls, key)
        if file is not None and not host.exists(file):
            yield Finding((*path, key), f"{file} is not there")
