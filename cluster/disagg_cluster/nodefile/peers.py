"""Whether prefill and decode workers can find each other, here or on another node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.nodefile.pairing import check_pairs
from disagg_exporter.model import Role

_HALVES = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


def check_peers(draft: Draft) -> Iterator[Finding]:
    """Halves without the other half, and engines that their peers elsewhere cannot reach."""
    if not (draft.sure("peers") and draft.sure("router")):
        return
    router = draft.config.router
    if router is not None or not has_peers_elsewhere(draft.config):
        yield from check_pairs(draft, all_meet=router is not None)
    if not has_peers_elsewhere(draft.config):
        yield from _lonely(draft)
        return
    for position, worker in draft.workers:
        at = ("workers", position)
        keys = ("role", "host", "env", "engine", "kv_transfer")
        if worker.role in _HALVES and all(draft.sure(*at, key) for key in keys):
            yield from _out_of_reach(draft.config, worker, at)


def has_peers_elsewhere(config: NodeConfig) -> bool:
    """Whether the file speaks of engines on other nodes."""
    router = config.router
    named = router is not None and bool(router.prefill or router.decode)
    return named or config.peers == "elsewhere"


def _lonely(draft: Draft) -> Iterator[Finding]:
    roles_known = all(draft.sure("workers", position, "role") for position, _ in draft.workers)
    if not (draft.complete and roles_known):
        return
    first: dict[Role, int] = {}
    for position, worker in draft.workers:
        first.setdefault(worker.role, position)
    for role, other in _HALVES.items():
        if role in first and other not in first:
            message = f"a {role} worker, but no {other} worker to share its requests with"
            hint = f"add a {other} worker, make the role mixed, or say peers: elsewhere"
            yield Finding(("workers", first[role], "role"), message, hint)
    # A router whose engines serve several models is complained of as a whole.
    if first.keys() >= _HALVES.keys() and draft.config.router is None:
        yield from _lonely_models(draft)


def _lonely_models(draft: Draft) -> Iterator[Finding]:
    """Models of which only one half is here."""
    first: dict[tuple[str, Role], int] = {}
    for position, worker in draft.workers:
        if not all(draft.sure("workers", position, key) for key in ("model", "served_model_name")):
            return
        if worker.role in _HALVES and worker.engine != "standin":
            first.setdefault((worker.model_name, worker.role), position)
    for (model, role), position in first.items():
        other = _HALVES[role]
        if (model, other) not in first:
            message = f"a {role} worker of {model}, but no {other} worker of that model"
            hint = "add one, give both halves one served_model_name, or say peers: elsewhere"
            yield Finding(("workers", position, "role"), message, hint)


def _out_of_reach(config: NodeConfig, worker: Worker, at: YamlPath) -> Iterator[Finding]:
    """Decode engines fetch KV from prefill engines; routers need both."""
    router = config.router
    only_prefill_elsewhere = router is not None and not router.decode and config.peers == "here"
    near = only_prefill_elsewhere if worker.role is Role.PREFILL else router is not None
    address = ipaddress.ip_address(worker.host)
    if near:
        return
    if address.is_loopback:
        message = f"peers elsewhere cannot reach {worker.host}"
        hint = "give the address of this node that they can reach; whoever reaches it can use it"
        path = (*at, "host") if "host" in worker.model_fields_set else at
        yield Finding(path, message, hint)
    told = "VLLM_NIXL_SIDE_CHANNEL_HOST" in worker.env or worker.engine != "vllm"
    nixl = worker.kv_transfer is not None and worker.kv_transfer.speaks("nixl")
    if worker.role is Role.PREFILL and address.is_unspecified and nixl and not told:
        message = f"NIXL would tell its peers to fetch KV from {worker.host}"
        hint = "give one address, or say it with env: {VLLM_NIXL_SIDE_CHANNEL_HOST: …}"
        yield Finding((*at, "host"), message, hint)
