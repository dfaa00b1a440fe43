"""Checks whether prefill and decode workers have each other, and can transfer KV."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from disagg_cluster.config import KvTransfer, NodeConfig, Worker
from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.launch.sglang_command import transfer_backend
from disagg_cluster.nodefile.draft import Draft
from disagg_exporter.model import Role

_HALVES = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


def check_peers(draft: Draft) -> Iterator[Finding]:
    """Yield halves without the other half, and engines that remote peers cannot reach."""
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
    """Whether the file mentions engines on other nodes."""
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
    # A router whose engines serve several models is reported as a whole.
    if first.keys() >= _HALVES.keys() and draft.config.router is None:
        yield from _lonely_models(draft)


def _lonely_models(draft: Draft) -> Iterator[Finding]:
    """Yield models of which only one half is here."""
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
    """Yield engines that remote peers cannot reach.

    Decode engines fetch KV from prefill engines; routers need both.
    """
    router = config.router
    only_prefill_elsewhere = router is not None and not router.decode and config.peers == "here"
    near = only_prefill_elsewhere if worker.role is Role.PREFILL else router is not None
    address = ipaddress.ip_address(worker.host)
    if near:
        return
    if address.is_loopback:
        message = f"peers elsewhere cannot reach {worker.host}"
        hint = (
            "give the address of this node that they can reach; "
            "any client that reaches it can use it"
        )
        path = (*at, "host") if "host" in worker.model_fields_set else at
        yield Finding(path, message, hint)
    given = "VLLM_NIXL_SIDE_CHANNEL_HOST" in worker.env or worker.engine != "vllm"
    nixl = worker.kv_transfer is not None and worker.kv_transfer.speaks("nixl")
    if worker.role is Role.PREFILL and address.is_unspecified and nixl and not given:
        message = f"NIXL would tell its peers to fetch KV from {worker.host}"
        hint = "give one address, or say it with env: {VLLM_NIXL_SIDE_CHANNEL_HOST: …}"
        yield Finding((*at, "host"), message, hint)


_KEYS = ("role", "engine", "model", "served_model_name", "kv_transfer")
# Longer names first, as they hold the shorter ones.
_TRANSPORTS = (
    *("nixlpush", "nixl", "mooncakestore", "mooncake", "moriio", "p2pnccl", "lmcache"),
    *("flexkv", "hf3fs"),
)


@dataclass(frozen=True, slots=True)
class _Half:
    """A worker of a pair, and its KV transports; no kinds if they cannot be known."""

    place: int
    worker: Worker
    kv: KvTransfer
    kinds: frozenset[str]

    def fits(self, other: _Half) -> bool:
        if self.worker.engine != other.worker.engine:
            return False
        known = bool(self.kinds and other.kinds)
        return not known or bool(self.kinds & other.kinds)


def check_pairs(draft: Draft, *, all_meet: bool) -> Iterator[Finding]:
    """Yield engines of one model that cannot transfer KV to those of its other half.

    Args:
        draft: The file.
        all_meet: Each prefill engine meets each decode engine, as behind a router; otherwise one
            peer that fits is enough for each.
    """
    models: dict[str, dict[Role, dict[object, _Half]]] = {}
    for place, worker in draft.workers:
        if worker.role not in _HALVES or worker.engine == "standin":
            continue
        kv = worker.kv_transfer
        if kv is None or not all(draft.sure("workers", place, key) for key in _KEYS):
            return  # what is missing may be the half that fits
        half = _Half(place, worker, kv, _transports(worker.engine, kv))
        halves = models.setdefault(worker.model_name, {role: {} for role in _HALVES})
        # One worker per transport stands for the others.
        halves[worker.role].setdefault((worker.engine, half.kinds), half)
    for model, halves in models.items():
        prefill, decode = halves[Role.PREFILL].values(), halves[Role.DECODE].values()
        found = list(_unpaired(decode, prefill, all_meet=all_meet))
        found = found or list(_unpaired(prefill, decode, all_meet=all_meet))
        for half, other in found:
            yield _told(model, half, other)


def _unpaired(
    halves: Collection[_Half], others: Collection[_Half], *, all_meet: bool
) -> Iterator[tuple[_Half, _Half]]:
    """Yield members of one half without a peer, each with one of the other half that misfits."""
    for half in halves:
        misfits = [other for other in others if not half.fits(other)]
        if misfits and (all_meet or len(misfits) == len(others)):
            yield half, misfits[0]


def _told(model: str, half: _Half, other: _Half) -> Finding:
    worker, peer = half.worker, other.worker
    at: YamlPath = ("workers", half.place)
    there = f"{peer.name} (workers[{other.place}])"
    if worker.engine != peer.engine:
        message = (
            f"{worker.name} is a {worker.role} worker of {worker.engine}, {there}, its other half "
            f"for {model}, of {peer.engine}"
        )
        return Finding((*at, "engine"), message, "both halves of a model need the same engine")
    message = (
        f"{worker.name} moves its KV by {half.kv.connector}, {there}, its other half "
        f"for {model}, by {other.kv.connector}"
    )
    hint = "both halves of a model need the same connector"
    return Finding((*at, "kv_transfer", "connector"), message, hint)


def _transports(engine: str, kv: KvTransfer) -> frozenset[str]:
    if engine == "sglang":
        backend = transfer_backend(kv.connector)
        return frozenset() if backend is None else frozenset((backend,))
    # A connector that wraps others names them in its extra configuration.
    text = f"{kv.connector} {kv.extra_config}".lower()
    found = set()
    for name in _TRANSPORTS:
        if name in text:
            found.add(name)
            text = text.replace(name, "")
    return frozenset(found)
