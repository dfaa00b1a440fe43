"""Which ports the parts of a node want, and which of them are in each other's way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.launch.command import ranks_of
from disagg_cluster.nodefile.draft import Draft

LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class _Claim:
    """Ports that something wants to listen on."""

    path: YamlPath
    owner: str
    ports: range


class _PortTable:
    """Who has which port; the first who wants it has it."""

    def __init__(self) -> None:
        self._taken = bytearray(LAST_PORT + 1)
        self._owners: list[_Claim | None] = [None] * (LAST_PORT + 1)

    def take(self, claim: _Claim) -> tuple[int, _Claim] | None:
        """Give a claim what is free of its ports; return the first that is not, and whose it is."""
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
    """Every port that two parts of the node would listen on."""
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
