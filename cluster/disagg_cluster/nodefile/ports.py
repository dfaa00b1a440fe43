"""Which ports the parts of a node want, and which of them are in each other's way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.problems import Finding, YamlPath


@dataclass(frozen=True, slots=True)
class _Claim:
    """Ports that something wants to listen on."""

    path: YamlPath
    owner: str
    ports: range


def check_ports(draft: Draft) -> Iterator[Finding]:
    """Every port that two parts of the node would listen on."""
    earlier: list[_Claim] = []
    for claim in _claims(draft):
        if claim.ports[-1] > 65535:
            yield Finding(claim.path, f"ports {_span(claim.ports)} are needed; the last is 65535")
        for other in earlier:
            common = range(
                max(claim.ports[0], other.ports[0]), 1 + min(claim.ports[-1], other.ports[-1])
            )
            if common:
                hint = "each needs ports of its own"
                if max(len(claim.ports), len(other.ports)) > 1:
                    hint = f"wanted here: {_span(claim.ports)}, there: {_span(other.ports)}"
                message = f"port {common[0]} already belongs to {other.owner}"
                yield Finding(claim.path, message, hint)
                break
        earlier.append(claim)


def _claims(draft: Draft) -> Iterator[_Claim]:
    metrics = draft.config.listen.metrics_address.port
    if metrics and draft.sure("listen", "metrics"):
        yield _Claim(("listen", "metrics"), "the metrics page", range(metrics, metrics + 1))
    for position, worker in draft.workers:
        at, label = ("workers", position), draft.label(position)
        if draft.sure(*at, "port"):
            yield _Claim((*at, "port"), label, range(worker.port, worker.port + 1))
        ports = worker.side_channel_ports
        keys = ["kv_transfer", "engine", *(["role"] if worker.uses_bootstrap else [])]
        if ports and all(draft.sure(*at, key) for key in keys):
            size_known = draft.sure(*at, "gpus") and draft.sure(*at, "tensor_parallel_size")
            path = (*at, "kv_transfer", "side_channel_port")
            wanted = ports if size_known else ports[:1]
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
