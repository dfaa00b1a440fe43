"""Whether prefill and decode workers find each other, and can hand KV to each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.launch.sglang_command import transfer_backend
from disagg_cluster.nodefile.draft import Draft
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
class _Transport:
    """By what an engine hands KV over; no kinds where we cannot know."""

    engine: str
    kinds: frozenset[str]

    def fits(self, other: _Transport) -> bool:
        if self.engine != other.engine:
            return False
        known = bool(self.kinds and other.kinds)
        return not known or bool(self.kinds & other.kinds)


@dataclass(slots=True)
class _PairRoles:
    """The workers of one model: the first place of each transport, by role."""

    firsts: dict[Role, dict[_Transport, int]] = field(
        default_factory=lambda: {Role.PREFILL: {}, Role.DECODE: {}}
    )


def check_pairs(draft: Draft, *, all_meet: bool) -> Iterator[Finding]:
    """Engines of one model that cannot hand KV to those of its other half.

    Args:
        draft: The file.
        all_meet: Each prefill engine meets each decode engine, as behind a router; otherwise it
            is enough that each has one that it fits.
    """
    models: dict[str, _PairRoles] = {}
    workers: dict[int, tuple[Worker, _Transport]] = {}
    for place, worker in draft.workers:
        sure = all(draft.sure("workers", place, key) for key in _KEYS)
        if worker.role not in (Role.PREFILL, Role.DECODE) or worker.engine == "standin":
            continue
        if not sure or worker.kv_transfer is None:
            return  # what is missing may be the half that fits
        transport = _Transport(worker.engine, _transports(worker))
        workers[place] = (worker, transport)
        halves = models.setdefault(worker.model_name, _PairRoles())
        halves.firsts[worker.role].setdefault(transport, place)
    for model, halves in models.items():
        found = list(_unpaired(workers, halves, Role.DECODE, all_meet=all_meet))
        found = found or list(_unpaired(workers, halves, Role.PREFILL, all_meet=all_meet))
        for place, other in found:
            yield _told(model, place, workers[place], other, workers[other])


def _unpaired(
    workers: dict[int, tuple[Worker, _Transport]], halves: _PairRoles, role: Role, *, all_meet: bool
) -> Iterator[tuple[int, int]]:
    """The places of one half, first of each transport, with one of the other half that misfits."""
    other = Role.PREFILL if role is Role.DECODE else Role.DECODE
    for transport, place in halves.firsts[role].items():
        misfits = [
            first for peer, first in halves.firsts[other].items() if not transport.fits(peer)
        ]
        if misfits and (all_meet or len(misfits) == len(halves.firsts[other])):
            yield place, misfits[0]


def _told(
    model: str,
    place: int,
    of: tuple[Worker, _Transport],
    other_place: int,
    other: tuple[Worker, _Transport],
) -> Finding:
    worker, mine = of
    peer, theirs = other
    at: YamlPath = ("workers", place)
    there = f"{peer.name} (workers[{other_place}])"
    if mine.engine != theirs.engine:
        message = (
            f"{worker.name} is a {worker.role} worker of {mine.engine}, {there}, its other half "
            f"for {model}, of {theirs.engine}"
        )
        return Finding((*at, "engine"), message, "both halves of a model need the same engine")
    assert worker.kv_transfer is not None
    assert peer.kv_transfer is not None
    message = (
        f"{worker.name} moves its KV by {worker.kv_transfer.connector}, {there}, its other half "
        f"for {model}, by {peer.kv_transfer.connector}"
    )
    hint = "both halves of a model need the same connector"
    return Finding((*at, "kv_transfer", "connector"), message, hint)


def _transports(worker: Worker) -> frozenset[str]:
    kv = worker.kv_transfer
    assert kv is not None
    if worker.engine == "sglang":
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
